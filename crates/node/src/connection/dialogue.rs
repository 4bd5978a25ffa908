//! Requests and replies that a connection exchanges one by one within one command, as the script debugger does.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use resp::{Batch, ParseLimits, Parser, Request};
use tokio::io::{AsyncRead, ReadBuf};

use super::Connection;

/// The number of bytes read at once.
const READ_CHUNK_BYTES: usize = 4096;
/// The maximum length of a debugger command in bytes.
const MAX_REQUEST_BYTES: usize = 1 << 20;

impl Connection {
    /// Waits for the next request and meanwhile sends pending output. Fails if the client disconnects or violates the
    /// protocol.
    pub(crate) async fn next_request(&mut self) -> io::Result<Request> {
        poll_fn(|context| self.poll_next_request(context)).await
    }

    pub(crate) async fn send_pending_output(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_send(context)).await
    }

    fn poll_next_request(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Request>> {
        loop {
            if let Poll::Ready(sent) = self.poll_send(context) {
                sent?;
            }
            if let Some(request) = self.take_request()? {
                return Poll::Ready(Ok(request));
            }
            let mut piece = [0; READ_CHUNK_BYTES];
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => outcome?,
            }
            let read = buffer.filled();
            if read.is_empty() || self.input_buffer.len() > MAX_REQUEST_BYTES {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.session.client().count_input_bytes(read.len());
            self.input_buffer.extend(read);
        }
    }

    /// Takes the first buffered request. `None` if it is incomplete.
    fn take_request(&mut self) -> io::Result<Option<Request>> {
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut self.input_buffer, &mut batch, &ParseLimits::default());
        if batch.is_empty() {
            return match parsed.error {
                Some(_) => Err(io::ErrorKind::InvalidData.into()),
                None => Ok(None),
            };
        }
        let request = Request::from(batch.args(0, &self.input_buffer));
        self.input_buffer.consume(batch.consumed_bytes(1));
        Ok(Some(request))
    }
}
