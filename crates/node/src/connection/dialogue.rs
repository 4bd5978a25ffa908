//! A connection whose client speaks with one command: a debugger's.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use resp::{Batch, ParseLimits, Parser, Request};
use tokio::io::{AsyncRead, ReadBuf};

use super::Connection;

/// Read at once.
const PIECE: usize = 4096;
/// No command of a debugger's is longer.
const MOST_UNREAD: usize = 1 << 20;

impl Connection {
    /// The next request that comes, while what is to be sent is sent. An error says that the client has gone, or does
    /// not speak the protocol.
    pub(crate) async fn next_request(&mut self) -> io::Result<Request> {
        poll_fn(|context| self.poll_next_request(context)).await
    }

    /// Sends all that is to be sent.
    pub(crate) async fn send_out(&mut self) -> io::Result<()> {
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
            let mut piece = [0; PIECE];
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => outcome?,
            }
            let read = buffer.filled();
            if read.is_empty() || self.input.len() > MOST_UNREAD {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.session.client.count_input(read.len());
            self.input.extend(read);
        }
    }

    /// The first request of what was read, if that is whole.
    fn take_request(&mut self) -> io::Result<Option<Request>> {
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut self.input, &mut batch, &ParseLimits::default());
        if batch.is_empty() {
            return match parsed.error {
                Some(_) => Err(io::ErrorKind::InvalidData.into()),
                None => Ok(None),
            };
        }
        let request = Request::from(batch.args(0, &self.input));
        self.input.consume(batch.consumed(1));
        Ok(Some(request))
    }
}
