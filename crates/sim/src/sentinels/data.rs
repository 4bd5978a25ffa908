//! What the servers do: requests answered, with what they change elsewhere, and data that moves.

use resp::Protocol;

use super::server::Effect;
use super::stream::ToClient;
use super::{Host, Kind, World};
use crate::Plant;

impl World {
    pub(super) fn serve_server(&mut self, host: usize, conn: u64, request: &[Vec<u8>]) {
        let Some(stream) = self.streams.get_mut(&conn) else { return };
        let exec = request.first().is_some_and(|word| word.eq_ignore_ascii_case(b"EXEC"));
        if let Some(queued) = stream.multi.as_mut().filter(|_| !exec) {
            queued.push(request.to_vec());
            self.push_to_client(conn, ToClient::Bytes(b"+QUEUED\r\n".to_vec()));
            return;
        }
        let queued = stream.multi.take().unwrap_or_default();
        if exec {
            let mut reply = format!("*{}\r\n", queued.len()).into_bytes();
            for request in queued {
                reply.extend(self.execute(host, conn, &request));
            }
            self.push_to_client(conn, ToClient::Bytes(reply));
        } else {
            let reply = self.execute(host, conn, request);
            self.push_to_client(conn, ToClient::Bytes(reply));
        }
    }

    fn execute(&mut self, host: usize, conn: u64, request: &[Vec<u8>]) -> Vec<u8> {
        let now = self.stage.now;
        let replicas = self.replicas_of(host);
        let (reply, effect) = self.server(host).answer(now, request, &replicas);
        match effect {
            Effect::None | Effect::Exec => {}
            Effect::Multi => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.multi = Some(Vec::new());
                }
            }
            Effect::Subscribe => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.subscribed = true;
                }
            }
            Effect::Publish(payload) => self.publish(host, &payload),
            Effect::Kill { subscribed } => {
                let conns = self.conns(|stream| stream.server == host && stream.subscribed == subscribed);
                for other in conns.into_iter().filter(|&other| other != conn) {
                    self.push_to_client(other, ToClient::Closed);
                }
            }
            // The planted fault: it has said yes.
            Effect::Follow(Some(_)) if self.stage.plan.plant == Some(Plant::IgnoredOrders) => {}
            Effect::Follow(upstream) => {
                self.stage.note(|| format!("server {host} follows {upstream:?}"));
                self.server(host).follow(now, upstream);
            }
            Effect::HandOver(ip, port) => self.hand_over(host, &ip, port),
        }
        reply
    }

    fn hand_over(&mut self, host: usize, ip: &str, port: u16) {
        let Some(to) = self.find(ip) else { return };
        if !self.server(to).link_up || !self.stage.runs(to) {
            return;
        }
        let now = self.stage.now;
        self.stage.note(|| format!("server {host} hands over to {to}"));
        self.server(to).follow(now, None);
        self.server(host).follow(now, Some((ip.to_owned(), port)));
    }

    fn publish(&mut self, host: usize, payload: &[u8]) {
        let mut message = Vec::new();
        let mut writer = resp::Writer::new(&mut message, Protocol::Resp2);
        writer.array(3);
        writer.bulk(b"message");
        writer.bulk(sentinel::HELLO_CHANNEL.as_bytes());
        writer.bulk(payload);
        for conn in self.conns(|stream| stream.server == host && stream.subscribed) {
            self.push_to_client(conn, ToClient::Bytes(message.clone()));
        }
    }

    fn replicas_of(&self, host: usize) -> Vec<(String, u64)> {
        let ip = &self.hosts[host].ip;
        let connected = |other: &Host| match &other.kind {
            Kind::Server(server)
                if server.link_up && server.upstream.as_ref().is_some_and(|(at, _)| at == ip) =>
            {
                Some((other.ip.clone(), server.offset))
            }
            _ => None,
        };
        self.hosts.iter().filter_map(connected).collect()
    }

    /// Masters take writes, replicas that reach their master have them.
    pub(super) fn replicate(&mut self) {
        for host in 0..self.hosts.len() {
            let Kind::Server(server) = &self.hosts[host].kind else { continue };
            let upstream = server.upstream.clone();
            if !self.stage.runs(host) {
                continue;
            }
            let Some((ip, _)) = upstream else {
                self.server(host).offset += 5;
                continue;
            };
            let master = self
                .find(&ip)
                .filter(|&master| self.stage.runs(master) && !self.stage.is_apart(host, master));
            let offset = master.map(|master| self.server(master).offset);
            let now = self.stage.now;
            let server = self.server(host);
            if let Some(offset) = offset {
                server.link_up = true;
                server.offset = offset;
            } else if server.link_up {
                server.link_up = false;
                server.link_lost = now;
            }
        }
    }
}
