//! Tests of client libraries that find the master through sentinels.

use harness::{MASTER_NAME, Program, SentinelGroup, eventually};
use redis::sentinel::{SentinelClient, SentinelServerType};

/// The sentinel client of the `redis` crate keeps writing through ten failovers. Each killed master returns as a
/// replica, and no acknowledged write is lost.
#[test]
fn redis_crate_follows_the_master_through_failovers() {
    let mut group =
        SentinelGroup::start(&Program::redoubt(), &std::array::from_fn::<_, 3, _>(|_| Program::redoubt()));
    group.shorten_timeouts();
    let sentinels: Vec<String> =
        group.sentinels.iter().map(|node| format!("redis://{}", node.address())).collect();
    let mut client = SentinelClient::build(sentinels, MASTER_NAME, None, SentinelServerType::Master).unwrap();
    for round in 0..10 {
        let master = group.wait_for_master();
        group.servers[master].kill();
        eventually(&format!("the client writes after failover {round}"), || {
            let mut connection = client.get_connection().ok()?;
            redis::cmd("SET").arg("round").arg(round).exec(&mut connection).ok()
        });
        group.servers[master].launch();
        group.wait_until_healthy();
        let mut connection = client.get_connection().unwrap();
        let value: u32 = redis::cmd("GET").arg("round").query(&mut connection).unwrap();
        assert_eq!(value, round);
    }
}
