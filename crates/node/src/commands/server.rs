//! Commands about the process.

use std::time::Duration;

use resp::Args;

use super::Outcome;

/// DEBUG SLEEP seconds: only this connection sleeps.
pub(crate) async fn debug_sleep(args: Args<'_>) -> Outcome {
    let seconds = args.get(2).and_then(|text| std::str::from_utf8(text).ok()?.parse::<f64>().ok());
    let duration = Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default();
    tokio::time::sleep(duration).await;
    Ok(())
}
