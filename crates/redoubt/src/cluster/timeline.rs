//! Formats failovers for a terminal: for each step its time, a mark on a timeline, and a description.
//!
//! The timeline ends before the first long gap, since a failed node may return an hour later. Later steps are marked `>`.

use std::fmt::Write as _;

use failover_history::{Failover, FailoverOutcome};

use super::replace_control_characters;

/// Width of the timeline in columns.
const TIMELINE_COLUMNS: u64 = 40;
/// The timeline ends before a gap of this many milliseconds between two steps.
const LONG_GAP_MS: u64 = 10_000;

/// Formats all failovers in the given order.
pub(super) fn format_failovers(failovers: &[Failover]) -> String {
    if failovers.is_empty() {
        return "No failovers since the node started.\n".to_owned();
    }
    let drawn: Vec<String> = failovers.iter().map(format_failover).collect();
    drawn.join("\n")
}

fn format_failover(failover: &Failover) -> String {
    let steps = &failover.steps;
    let end = timeline_end(failover);
    let outcome = match failover.outcome {
        FailoverOutcome::Open => "under way",
        FailoverOutcome::Replaced => "replaced",
        FailoverOutcome::CameBack => "came back",
        FailoverOutcome::GivenUp => "given up",
    };
    let mut text =
        format!("{}: {outcome}, began {} ago\n", failover_title(failover), format_age(failover.began_ms_ago));
    for step in steps {
        let mark =
            if step.ms > end { TIMELINE_COLUMNS } else { step.ms * (TIMELINE_COLUMNS - 1) / end.max(1) };
        let line: String =
            (0..TIMELINE_COLUMNS).map(|column| if column == mark { '*' } else { '.' }).collect();
        let late = if mark == TIMELINE_COLUMNS { '>' } else { '|' };
        // Writing into a string does not fail.
        let _ = writeln!(text, "{:>9} ms |{line}{late} {}", step.ms, replace_control_characters(&step.text));
    }
    text
}

/// Returns the time of the last step on the timeline, in milliseconds.
fn timeline_end(failover: &Failover) -> u64 {
    let mut end = 0;
    for step in &failover.steps {
        if step.ms > end + LONG_GAP_MS {
            break;
        }
        end = step.ms;
    }
    end
}

fn failover_title(failover: &Failover) -> String {
    let is_id = failover.node.len() == 40 && failover.node.bytes().all(|byte| byte.is_ascii_hexdigit());
    let node = replace_control_characters(if is_id {
        failover.node.get(..8).unwrap_or_default()
    } else {
        &failover.node
    });
    match failover.address.as_str() {
        "" => node,
        address => format!("{} ({node})", replace_control_characters(address)),
    }
}

fn format_age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..600_000 => format!("{} s", ms / 1000),
        600_000..36_000_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use failover_history::FailoverStep;

    use super::*;

    fn test_failover(steps: &[(u64, &str)]) -> Failover {
        let step = |(ms, text): &(u64, &str)| FailoverStep { ms: *ms, text: (*text).to_owned() };
        Failover {
            node: "0123456789abcdef0123456789abcdef01234567".into(),
            address: "10.0.0.1:7000".into(),
            began_ms_ago: 12_345,
            outcome: FailoverOutcome::Replaced,
            steps: steps.iter().map(step).collect(),
        }
    }

    #[test]
    fn timeline_marks_steps_in_proportion_and_late_steps_after_its_end() {
        let steps =
            [(0, "suspected"), (100, "agreed"), (200, "takes \x1b over"), (3_600_000, "answers again")];
        let dots = |count| ".".repeat(count);
        let expected = [
            "10.0.0.1:7000 (01234567): replaced, began 12 s ago".to_owned(),
            format!("        0 ms |*{}| suspected", dots(39)),
            format!("      100 ms |{}*{}| agreed", dots(19), dots(20)),
            format!("      200 ms |{}*| takes ? over", dots(39)),
            format!("  3600000 ms |{}> answers again", dots(40)),
        ];
        assert_eq!(format_failovers(&[test_failover(&steps)]).lines().collect::<Vec<_>>(), expected);
        assert_eq!(format_failovers(&[test_failover(&[(0, "suspected")])]).lines().count(), 2);
        assert_eq!(format_failovers(&[test_failover(&steps), test_failover(&steps)]).lines().count(), 11);
        assert!(format_failovers(&[]).starts_with("No failovers"));
    }
}
