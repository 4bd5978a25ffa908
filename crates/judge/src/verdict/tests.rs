//! Verdicts on runs that nobody has to play.
