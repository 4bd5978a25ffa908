//! Runs the tests of the features: one after another, then concurrently with a master killed in their middle.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::timeout;

use crate::kill_barrier::KillEvent;
use crate::table::ResultTable;
use crate::{ClientTestServers, DeploymentMode, Feature, FeatureAttempt, FeatureResult};

/// The time limit for the test of one feature.
const FEATURE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the kill waits for features whose tests have not reached their middle.
const KILL_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The RESP version of tests with a killed master. The reaction to the kill does not depend on it, so one version is
/// enough.
const TESTED_PROTOCOL: u8 = 3;

/// A RESP version and the feature tested with it.
type FeatureCase = (u8, Feature);

/// Tests all features of a library in this mode.
///
/// # Panics
/// A feature fails.
pub fn test_all_features(
    client: &'static str,
    mode: DeploymentMode,
    protocol: u8,
    perform: &impl AsyncFn(&FeatureAttempt, Feature) -> FeatureResult,
) {
    // A sentinel group with TLS accepts no other connections, so it is tested separately.
    let tls = mode != DeploymentMode::Sentinel;
    let features = Feature::ALL.into_iter().filter(|&feature| tls || feature != Feature::Tls);
    let cases: Vec<FeatureCase> = features.map(|feature| (protocol, feature)).collect();
    run_cases(client, ClientTestServers::start_servers(mode, tls), &cases, perform);
}

/// Tests TLS connections with sentinels, in both protocols.
///
/// # Panics
/// A test fails.
pub fn test_tls_with_sentinels(
    client: &'static str,
    perform: &impl AsyncFn(&FeatureAttempt, Feature) -> FeatureResult,
) {
    let cases = [2, 3].map(|protocol| (protocol, Feature::Tls));
    run_cases(client, ClientTestServers::start_servers(DeploymentMode::Sentinel, true), &cases, perform);
}

fn run_cases(
    client: &'static str,
    mut deployment: ClientTestServers,
    cases: &[FeatureCase],
    perform: &impl AsyncFn(&FeatureAttempt, Feature) -> FeatureResult,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut table = ResultTable::new(client);
    runtime.block_on(async {
        run_sequentially(&deployment, &mut table, cases, perform).await;
        let newest = cases.iter().any(|(protocol, _)| *protocol == TESTED_PROTOCOL);
        if newest && deployment.addresses.mode != DeploymentMode::Standalone {
            run_with_killed_master(&mut deployment, &mut table, cases, perform).await;
        }
    });
    // The result of a hanging feature is already recorded; do not wait for it.
    runtime.shutdown_background();
    table.assert_no_failures();
}

async fn run_sequentially(
    deployment: &ClientTestServers,
    table: &mut ResultTable,
    cases: &[FeatureCase],
    perform: &impl AsyncFn(&FeatureAttempt, Feature) -> FeatureResult,
) {
    for &(protocol, feature) in cases {
        let attempt = FeatureAttempt::new(deployment.addresses.clone(), protocol, None);
        let outcome = with_timeout(perform(&attempt, feature)).await;
        table.record(deployment.addresses.mode.name(), protocol, feature, outcome);
    }
}

async fn run_with_killed_master(
    deployment: &mut ClientTestServers,
    table: &mut ResultTable,
    cases: &[FeatureCase],
    perform: &impl AsyncFn(&FeatureAttempt, Feature) -> FeatureResult,
) {
    let cases: Vec<FeatureCase> = cases
        .iter()
        .copied()
        .filter(|(protocol, feature)| *protocol == TESTED_PROTOCOL && feature.runs_with_killed_master())
        .collect();
    let (mut event, middles) = KillEvent::with_barriers(cases.len());
    let addresses = deployment.addresses.clone();
    let attempts = cases.iter().zip(middles).map(async |(&(protocol, feature), middle)| {
        let attempt = FeatureAttempt::new(addresses.clone(), protocol, Some(middle));
        with_timeout(perform(&attempt, feature)).await
    });
    let killing = async {
        // A feature whose test hangs before its middle is reported in its own cell.
        let _ = timeout(KILL_WAIT_TIMEOUT, event.wait_for_arrivals()).await;
        let number = deployment.kill_master();
        event.finish();
        number
    };
    let (outcomes, killed) = join(join_all(attempts), killing).await;
    deployment.restart_server(killed);
    for ((protocol, feature), outcome) in cases.into_iter().zip(outcomes) {
        table.record(addresses.mode.name_with_kill(), protocol, feature, outcome);
    }
}

async fn with_timeout(feature: impl Future<Output = FeatureResult>) -> FeatureResult {
    timeout(FEATURE_TIMEOUT, feature).await?
}
