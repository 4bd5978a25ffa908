//! The HTTP endpoint of `metrics-port`: `/metrics` for Prometheus, `/healthz` and `/readyz` for orchestration, and the
//! status page `/` with its `/api/...` requests.
//!
//! The endpoint runs on its own thread, which exists only if a port is configured and only wakes for requests, so an
//! unused endpoint costs nothing. All requests are read-only. A scan of the data locks one slot at a time. A script may
//! hold a slot's lock for long, so scans run on a helper thread and health checks are answered meanwhile. Request
//! bodies are never read, and request heads are bounded.

mod access;
mod data_sample;
mod failovers;
mod load_sample;
mod page_files;
mod page_state;
mod patterns;
mod readiness;
mod scrape;
mod slots;

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use config::keys;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::listener;
use net::tls::{HANDSHAKE_TIMEOUT, TlsPeers};
use net::transport::{Listener, Stream};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::server::Server;

/// The maximum number of concurrent connections. Further connections wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
const LISTEN_BACKLOG: i32 = 64;
/// The maximum number of concurrent scans of the data.
const MAX_CONCURRENT_SCANS: usize = 4;
/// Connections that are idle for this long are closed, including those that never send a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum lifetime of a connection, even if the client does not read its responses.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(600);
/// The maximum size of a request head in bytes.
const MAX_HEAD_SIZE: usize = 16 * 1024;
/// The node counts as unhealthy if the control thread does not respond within this time.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// The Content-Security-Policy header: no external resources, and no framing by other pages. The icon is a data URL.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON_CONTENT_TYPE: &str = "application/json";

type HttpResponse = Response<Full<Bytes>>;

/// State shared by all HTTP connections.
#[derive(Debug)]
struct WebState {
    server: Arc<Server>,
    load_sampler: load_sample::LoadSampler,
}

/// Opens the listeners of `metrics-port` and starts their thread, which runs until the process exits.
pub(crate) fn start_web_server(server: &Arc<Server>) -> Result<()> {
    let values = server.config.values().clone();
    let port = values[keys::METRICS_PORT];
    if port == 0 {
        return Ok(());
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime =
        runtime.enable_all().max_blocking_threads(MAX_CONCURRENT_SCANS).thread_name("web-look").build()?;
    let listeners: Vec<Listener> = {
        let _loop = runtime.enter();
        let listeners =
            listener::bind_at_startup(&values[keys::METRICS_BIND], port, LISTEN_BACKLOG, "metrics")?;
        let secure = |listener: Listener| match values[keys::METRICS_TLS] {
            true => listener.with_tls(&server.network.tls, TlsPeers::Clients),
            false => listener,
        };
        listeners.into_iter().map(secure).collect()
    };
    let web =
        Arc::new(WebState { server: server.clone(), load_sampler: load_sample::LoadSampler::default() });
    let serve = async move {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        for listener in listeners {
            tokio::spawn(accept_connections(web.clone(), listener, room.clone()));
        }
        web.server.stop_signal.wait_until_stopped().await;
    };
    std::thread::Builder::new().name("web".to_owned()).spawn(move || runtime.block_on(serve))?;
    tracing::info!("Ready to show figures on port {port}");
    Ok(())
}

async fn accept_connections(web: Arc<WebState>, listener: Listener, permits: Arc<Semaphore>) {
    while let Ok(place) = permits.clone().acquire_owned().await {
        let (stream, peer) = listener.accept("a reader of figures").await;
        tokio::spawn(serve_connection(web.clone(), stream, peer, place));
    }
}

/// Serves one connection. Errors are ignored, since they only concern this client.
async fn serve_connection(
    web: Arc<WebState>,
    mut stream: Stream,
    peer: Option<IpAddr>,
    permit: OwnedSemaphorePermit,
) {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.handshake()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return tracing::debug!("a reader of figures could not agree on TLS: {error}"),
        Err(_) => return,
    }
    let service = service_fn(move |request| {
        let web = web.clone();
        async move { Ok::<_, Infallible>(handle_request(&web, peer, &request).await) }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEAD_SIZE)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = tokio::time::timeout(MAX_CONNECTION_LIFETIME, conversation).await {
        tracing::debug!("a reader of figures was lost: {error}");
    }
    drop(permit);
}

async fn handle_request(
    web: &Arc<WebState>,
    peer: Option<IpAddr>,
    request: &Request<Incoming>,
) -> HttpResponse {
    let server = &*web.server;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text_response(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n");
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, MAX_HEAD_SIZE"));
        return refusal;
    }
    // Health endpoints for orchestration need no password and reveal no statistics.
    match request.uri().path() {
        "/healthz" => return health_response(server).await,
        "/readyz" => return readiness_response(server),
        _ => {}
    }
    if let Err(denial) = access::check_access(&server.config.values(), peer, request.headers()) {
        return denial.to_response();
    }
    match request.uri().path() {
        "/metrics" => {
            respond_with_query(web, METRICS_CONTENT_TYPE, |server| {
                metrics::render(scrape::collect_metrics(server))
            })
            .await
        }
        "/api/state" => respond_with_query(web, JSON_CONTENT_TYPE, page_state::state_json).await,
        "/api/slots" => {
            let figure = slots::SlotMetric::from_query(request.uri().query().unwrap_or_default());
            respond_with_query(web, JSON_CONTENT_TYPE, move |server| slots::slots_json(server, figure)).await
        }
        "/api/failovers" => respond_with_query(web, JSON_CONTENT_TYPE, failovers::failovers_json).await,
        "/api/keys" => respond_with_query(web, JSON_CONTENT_TYPE, data_sample::sample_json).await,
        "/api/load" => uncached_response(JSON_CONTENT_TYPE, web.load_sampler.load_json(server).await),
        path => match page_files::find_file(path) {
            Some((kind, text)) => uncached_response(kind, text),
            None => text_response(StatusCode::NOT_FOUND, "There is nothing here.\n"),
        },
    }
}

/// Runs a query on the server. Its result is the JSON body of the response.
async fn respond_with_query(
    web: &Arc<WebState>,
    content_type: &'static str,
    query: impl FnOnce(&Server) -> String + Send + 'static,
) -> HttpResponse {
    let web = web.clone();
    match tokio::task::spawn_blocking(move || query(&web.server)).await {
        Ok(body) => uncached_response(content_type, body),
        Err(error) => {
            tracing::warn!("Figures could not be shown: {error}");
            text_response(StatusCode::INTERNAL_SERVER_ERROR, "The server's log says why.\n")
        }
    }
}

fn to_json(value: &impl Serialize) -> String {
    // Serialisation cannot fail, since all maps have string keys.
    serde_json::to_string(value).unwrap_or_default()
}

/// Formats at most `max` bytes in readable form.
fn format_bytes(bytes: &[u8], max_len: usize) -> String {
    let kept = &bytes[..bytes.len().min(max_len)];
    let mut text = String::new();
    for chunk in kept.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                let _ = write!(text, "\\x{:02x}", u32::from(c));
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    if bytes.len() > max_len {
        text.push('…');
    }
    text
}

/// Checks whether the control thread, which accepts clients and runs timers, responds within [`HEALTH_TIMEOUT`].
async fn health_response(server: &Server) -> HttpResponse {
    let Some(control) = server.network.listeners.event_loop() else {
        return text_response(StatusCode::SERVICE_UNAVAILABLE, "not started\n");
    };
    match tokio::time::timeout(HEALTH_TIMEOUT, control.spawn(async {})).await {
        Ok(Ok(())) => text_response(StatusCode::OK, "ok\n"),
        Ok(Err(_)) => text_response(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        Err(_) => text_response(StatusCode::SERVICE_UNAVAILABLE, "the control thread stands still\n"),
    }
}

fn readiness_response(server: &Server) -> HttpResponse {
    let hindrances: String =
        readiness::readiness_blockers(server).map(|hindrance| format!("{}\n", hindrance.name())).collect();
    if hindrances.is_empty() {
        text_response(StatusCode::OK, "ready\n")
    } else {
        text_response(StatusCode::SERVICE_UNAVAILABLE, hindrances)
    }
}

fn text_response(status: StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    let mut answer = uncached_response("text/plain; charset=utf-8", body);
    *answer.status_mut() = status;
    answer
}

/// Builds a response whose headers forbid caching and framing.
fn uncached_response(content_type: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let mut answer = Response::new(Full::new(body.into()));
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
