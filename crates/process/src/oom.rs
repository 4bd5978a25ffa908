//! Adjusts the kernel's OOM score of this process (`oom-score-adj`).

use config::{Config, OomScoreMode, keys};
use parking_lot::Mutex;

const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";
/// Range accepted by the kernel.
const SCORE_RANGE: std::ops::RangeInclusive<i64> = -1000..=1000;

/// Sets the `oom_score_adj` of this process according to its role.
#[derive(Debug, Default)]
pub struct OomScoreAdjuster(Mutex<AdjusterState>);

#[derive(Debug, Default)]
struct AdjusterState {
    /// The score that the process had before its first change; `None` before that change.
    initial_score: Option<i64>,
    last_written_score: Option<i64>,
}

impl OomScoreAdjuster {
    /// Writes the score for the current role if it differs from the last one written.
    pub fn apply(&self, config: &Config, is_replica: bool) {
        let mut state = self.0.lock();
        let mode = config.get(keys::OOM_SCORE_ADJ);
        if mode == OomScoreMode::No && state.initial_score.is_none() {
            return;
        }
        let read = || {
            std::fs::read_to_string(OOM_SCORE_FILE)
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let initial = *state.initial_score.get_or_insert_with(read);
        let [master, as_replica, _] = config.get(keys::OOM_SCORE_ADJ_VALUES);
        let wanted = adjusted_score(mode, initial, i64::from(if is_replica { as_replica } else { master }));
        if state.last_written_score == Some(wanted) {
            return;
        }
        state.last_written_score = Some(wanted);
        if let Err(error) = std::fs::write(OOM_SCORE_FILE, wanted.to_string()) {
            tracing::warn!("Unable to write to {OOM_SCORE_FILE}: {error}");
        }
    }
}

fn adjusted_score(mode: OomScoreMode, initial: i64, value: i64) -> i64 {
    let wanted = match mode {
        OomScoreMode::Absolute => value,
        OomScoreMode::No => initial,
        OomScoreMode::Yes | OomScoreMode::Relative => initial.saturating_add(value),
    };
    wanted.clamp(*SCORE_RANGE.start(), *SCORE_RANGE.end())
}

#[cfg(test)]
mod tests {
    use super::{OomScoreMode, adjusted_score};

    #[test]
    fn score_is_relative_or_absolute_by_mode() {
        assert_eq!(adjusted_score(OomScoreMode::Yes, 100, 200), 300);
        assert_eq!(adjusted_score(OomScoreMode::Relative, 900, 200), 1000);
        assert_eq!(adjusted_score(OomScoreMode::Absolute, 100, 200), 200);
        assert_eq!(adjusted_score(OomScoreMode::No, 100, 200), 100);
    }
}
