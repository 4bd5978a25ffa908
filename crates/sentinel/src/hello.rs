//! Hello messages, through which sentinels discover each other and learn about switches that they missed.
//!
//! The format is `ip,port,runid,current epoch,master name,master ip,master port,config epoch`. Every sentinel publishes
//! one on each instance every two seconds.

use crate::addr::{Addr, RunId, is_host};

/// The Pub/Sub channel for hello messages.
pub const HELLO_CHANNEL: &str = "__sentinel__:hello";

/// Epochs in hello messages must be below this limit, so that incrementing them never overflows.
const MAX_EPOCH: u64 = 1 << 47;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) addr: Addr,
    pub(crate) run_id: RunId,
    pub(crate) epoch: u64,
    pub(crate) master: String,
    pub(crate) master_addr: Addr,
    pub(crate) config_epoch: u64,
}

impl Hello {
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload.get(..1024.min(payload.len()))?).ok()?;
        let parts: Vec<&str> = text.split(',').collect();
        let [ip, port, run_id, epoch, master, master_ip, master_port, config_epoch] = parts[..] else {
            return None;
        };
        let number = |text: &str| text.parse().ok().filter(|&epoch| epoch < MAX_EPOCH);
        let addr = |host, port: &str| Some(Addr::new(host, port.parse().ok()?)).filter(|_| is_host(host));
        Some(Self {
            addr: addr(ip, port)?,
            run_id: RunId::parse(run_id)?,
            epoch: number(epoch)?,
            master: master.to_owned(),
            master_addr: addr(master_ip, master_port)?,
            config_epoch: number(config_epoch)?,
        })
    }
}

impl std::fmt::Display for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (me, master) = (&self.addr, &self.master_addr);
        write!(
            f,
            "{},{},{},{},{},{},{},{}",
            me.host,
            me.port,
            self.run_id,
            self.epoch,
            self.master,
            master.host,
            master.port,
            self.config_epoch
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hello_messages_of_redis_are_parsed() {
        let text = format!("127.0.0.1,26379,{},3,mymaster,127.0.0.1,6379,2", "ab".repeat(20));
        let hello = Hello::parse(text.as_bytes()).unwrap();
        assert_eq!(hello.addr, Addr::new("127.0.0.1", 26379));
        assert_eq!((hello.epoch, hello.config_epoch), (3, 2));
        assert_eq!(hello.to_string(), text);
    }

    #[test]
    fn malformed_hello_messages_are_rejected() {
        let id = "ab".repeat(20);
        for text in [
            String::new(),
            "a,b".into(),
            format!("127.0.0.1,26379,{id},3,m,127.0.0.1,6379,2,more"),
            format!("127.0.0.1,26379,{id},-1,m,127.0.0.1,6379,2"),
            format!("127.0.0.1,26379,{id},3,m,127.0.0.1,6379,{}", u64::MAX),
            "127.0.0.1,26379,short,3,m,127.0.0.1,6379,2".into(),
            format!("127.0.0.1 x,26379,{id},3,m,127.0.0.1,6379,2"),
        ] {
            assert_eq!(Hello::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Hello::parse(&bytes);
        }
    }
}
