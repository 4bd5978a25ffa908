//! Simulates connections between processes. A connection delivers its data in order, or breaks.

use std::time::Duration;

use resp::Value;
use sentinel::{LinkId, SentinelInput};

use super::server::ReplicaInfo;
use super::{ClientId, RETRANSMIT_INTERVAL, SentinelSimEvent, SentinelWorld, parse_value};
use crate::InjectedBug;
use crate::delivery_queue::{DeliveryPoll, DeliveryQueue};

#[derive(Debug, Clone)]
pub(super) enum ToClient {
    Connected,
    Bytes(Vec<u8>),
    Closed,
}

#[derive(Debug, Clone)]
pub(super) struct SentinelConnection {
    pub(super) client: usize,
    pub(super) link: LinkId,
    pub(super) server: usize,
    pub(super) subscribed: bool,
    pub(super) multi: Option<Vec<Vec<Vec<u8>>>>,
    to_server: DeliveryQueue<Vec<Vec<u8>>>,
    to_client: DeliveryQueue<ToClient>,
}

impl SentinelWorld {
    /// Returns the connections that satisfy `holds`.
    pub(super) fn find_connections(&self, holds: impl Fn(&SentinelConnection) -> bool) -> Vec<u64> {
        self.streams.iter().filter(|(_, stream)| holds(stream)).map(|(&conn, _)| conn).collect()
    }

    pub(super) fn connect(&mut self, client: usize, link: LinkId, ip: &str) {
        let Some(server) = self.find_host(ip) else { return };
        self.last_connection += 1;
        let conn = self.last_connection;
        let (to_server, to_client) = (DeliveryQueue::default(), DeliveryQueue::default());
        let stream =
            SentinelConnection { client, link, server, subscribed: false, multi: None, to_server, to_client };
        self.streams.insert(conn, stream);
        self.sentinel(client).links.insert(link, conn);
        let at = self.simulation.now + self.simulation.draw_latency(client, server);
        self.simulation.schedule_at(at, SentinelSimEvent::ConnectArrives { conn });
    }

    /// Handles a connection attempt that reaches its host. A frozen process still accepts connections.
    pub(super) fn on_connect(&mut self, conn: u64) {
        let Some(stream) = self.streams.get(&conn) else { return };
        let (client, server, link) = (stream.client, stream.server, stream.link);
        if self.simulation.cannot_communicate(client, server) {
            // No process accepts the connection, so the connection attempt will time out.
            return;
        }
        if self.simulation.processes[server].is_up {
            self.push_to_client(conn, ToClient::Connected);
        } else {
            self.forget(conn);
            if self.simulation.is_running(client) {
                self.handle_input(client, SentinelInput::ConnectFailed { link, refused: true });
            }
        }
    }

    fn forget(&mut self, conn: u64) {
        let Some(stream) = self.streams.remove(&conn) else { return };
        let sentinel = self.sentinel(stream.client);
        if sentinel.links.get(&stream.link) == Some(&conn) {
            sentinel.links.remove(&stream.link);
        }
    }

    pub(super) fn close_link(&mut self, host: usize, link: LinkId) {
        if let Some(conn) = self.sentinel(host).links.get(&link).copied() {
            self.forget(conn);
        }
    }

    /// Sends a request of a sentinel. Raft messages also suffer loss, duplication and reordering.
    pub(super) fn send(&mut self, host: usize, link: LinkId, mut request: Vec<Vec<u8>>) {
        let Some(&conn) = self.sentinel(host).links.get(&link) else { return };
        let Some(server) = self.streams.get(&conn).map(|stream| stream.server) else { return };
        if request.len() == 4 && request[1] == b"RAFT" && !self.simulation.is_healed {
            let fate = self.simulation.random.random_below(100);
            if fate < 15 && !self.simulation.is_blocked(host, server) {
                // The message is duplicated or delayed.
                let at = self.simulation.now + self.simulation.draw_latency(host, server) * 3;
                self.simulation.schedule_at(
                    at,
                    SentinelSimEvent::StrayMessage { host: server, request: request.clone() },
                );
            }
            if fate < 10 {
                // The message is lost or overtaken.
                request.truncate(2);
            }
        }
        let at = self.simulation.now + self.simulation.draw_latency(host, server);
        let planned = self.streams.get_mut(&conn).and_then(|stream| stream.to_server.push(at, request));
        if let Some(at) = planned {
            self.simulation.schedule_at(at, SentinelSimEvent::ToServer { conn });
        }
    }

    pub(super) fn push_to_client(&mut self, conn: u64, item: ToClient) {
        let Some(stream) = self.streams.get(&conn) else { return };
        let (client, server) = (stream.client, stream.server);
        let at = self.simulation.now + self.simulation.draw_latency(server, client);
        let planned = self.streams.get_mut(&conn).and_then(|stream| stream.to_client.push(at, item));
        if let Some(at) = planned {
            self.simulation.schedule_at(at, SentinelSimEvent::ToClient { conn });
        }
    }

    pub(super) fn pump_to_server(&mut self, conn: u64) {
        while let Some(SentinelConnection { client, server, .. }) = self.streams.get(&conn) {
            let (now, blocked_for) = (self.simulation.now, self.retry_time(*client, *server));
            let server = *server;
            let Some(stream) = self.streams.get_mut(&conn) else { return };
            let request = match stream.to_server.next(now, blocked_for) {
                DeliveryPoll::Empty => return,
                DeliveryPoll::RetryAt(at) => {
                    return self.simulation.schedule_at(at, SentinelSimEvent::ToServer { conn });
                }
                DeliveryPoll::Item(request) => request,
            };
            if self.is_sentinel(server) {
                self.serve_sentinel(server, Some(ClientId(conn)), request);
            } else {
                self.serve_server(server, conn, &request);
            }
        }
    }

    pub(super) fn pump_to_client(&mut self, conn: u64) {
        while let Some(SentinelConnection { client, server, link, .. }) = self.streams.get(&conn) {
            let (now, blocked_for) = (self.simulation.now, self.retry_time(*server, *client));
            let (client, server, link) = (*client, *server, *link);
            let Some(stream) = self.streams.get_mut(&conn) else { return };
            let item = match stream.to_client.next(now, blocked_for) {
                DeliveryPoll::Empty => return,
                DeliveryPoll::RetryAt(at) => {
                    return self.simulation.schedule_at(at, SentinelSimEvent::ToClient { conn });
                }
                DeliveryPoll::Item(item) => item,
            };
            let input = match item {
                ToClient::Connected => {
                    let local_ip = self.ips[client].clone();
                    SentinelInput::Connected { link, local_ip }
                }
                ToClient::Closed => {
                    self.forget(conn);
                    SentinelInput::Disconnected { link }
                }
                ToClient::Bytes(bytes) => match parse_value(&bytes) {
                    Ok(Some((value, _))) => SentinelInput::Reply { link, value },
                    other => {
                        return self
                            .simulation
                            .abort_run(&format!("a reply that is none, {bytes:?}: {other:?}"));
                    }
                },
            };
            let told = match &input {
                SentinelInput::Reply { value, .. } => {
                    value.as_bytes().and_then(|text| ReplicaInfo::parse(now, text))
                }
                _ => None,
            };
            let Some(told) = told else {
                self.handle_input(client, input);
                continue;
            };
            let offset = told.offset;
            self.sentinel(client).last_info.insert(server, told);
            self.handle_input(client, self.lose_offsets(input, offset));
        }
    }

    /// Implements an injected bug: the offsets that servers report are lost.
    fn lose_offsets(&self, input: SentinelInput, offset: u64) -> SentinelInput {
        let SentinelInput::Reply { link, value: Value::Bulk(text) } = input else { return input };
        if self.simulation.plan.injected_bug != Some(InjectedBug::LostOffsets) {
            return SentinelInput::Reply { link, value: Value::Bulk(text) };
        }
        let text = String::from_utf8_lossy(&text);
        let text = text.replace(&format!("slave_repl_offset:{offset}"), "slave_repl_offset:0");
        SentinelInput::Reply { link, value: Value::Bulk(text.into_bytes()) }
    }

    /// Returns when to retry if a partition holds the data back.
    fn retry_time(&self, from: usize, to: usize) -> Option<Duration> {
        (self.simulation.is_blocked(from, to) || !self.simulation.is_running(to))
            .then_some(RETRANSMIT_INTERVAL)
    }

    /// Breaks the connections of a process that has ended. Its peers notice if the network permits.
    pub(super) fn break_streams(&mut self, host: usize) {
        for conn in self.find_connections(|stream| stream.client == host) {
            self.streams.remove(&conn);
        }
        for conn in self.find_connections(|stream| stream.server == host) {
            self.push_to_client(conn, ToClient::Closed);
        }
    }
}
