//! The baseline server for benchmarks: parses requests and replies +OK to each, on a single-threaded tokio runtime.
//! `scripts/bench` compares other servers with it, since no server of this design can do less work per request.
//!
//! Usage: `floor PORT`

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use resp::{Batch, ParseLimits, Parser};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

struct Connection {
    stream: TcpStream,
    parser: Parser,
    batch: Batch,
    /// The bytes of an unfinished request.
    input: Vec<u8>,
}

impl Connection {
    /// Reads requests and replies to them until no more data is available. Ready when the client has disconnected.
    fn poll_connection(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut read = [0; 16 * 1024];
            let mut buffer = ReadBuf::new(&mut read);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
            self.input.extend_from_slice(buffer.filled());
            self.batch.clear();
            let parsed = self.parser.parse(&mut self.input, &mut self.batch, &ParseLimits::default());
            self.input.drain(..parsed.consumed_bytes);
            self.stream.try_write(&b"+OK\r\n".repeat(self.batch.len()))?;
        }
    }
}

async fn run_server(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (parser, batch, input) = (Parser::new(), Batch::default(), Vec::new());
        let mut connection = Connection { stream, parser, batch, input };
        tokio::task::spawn_local(async move {
            // An error only means that the client has disconnected, so it is ignored.
            let _ = poll_fn(|context| connection.poll_connection(context)).await;
        });
    }
}

fn main() -> io::Result<()> {
    let Some(port) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: floor PORT");
        std::process::exit(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run_server(port))
}
