use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

async fn tcp_pair() -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (theirs, _) = Listener::Tcp(listener).accept("test connection").await;
    (Stream::Tcp(ours), theirs)
}

fn unix_pair() -> (Stream, Stream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Stream::Unix(ours), Stream::Unix(theirs))
}

/// Detaching a stream and opening it on another event loop, as for a replica's connection, loses neither bytes nor the
/// end of the stream.
#[tokio::test]
async fn stream_moves_to_another_event_loop_without_loss() {
    for (mut ours, mut theirs) in [tcp_pair().await, unix_pair()] {
        ours.write_all(b"before ").await.unwrap();
        let socket = theirs.detach().unwrap();
        assert!(!socket.is_idle());
        assert_eq!(theirs.read(&mut [0; 8]).await.unwrap(), 0, "whoever had it is at its end");
        assert_eq!(theirs.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        theirs.wait_until_closed_by_peer().await;
        assert!(theirs.connection_info().is_err() && theirs.detach().is_err());
        ours.write_all(b"after").await.unwrap();
        ours.shutdown().await.unwrap();
        let read = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut text = String::new();
                Stream::open(socket).unwrap().read_to_string(&mut text).await.unwrap();
                text
            })
        });
        assert_eq!(read.join().unwrap(), "before after");
    }
}

/// A client may disconnect after sending its next request; the disconnect must be noticed before that request is read.
#[tokio::test]
async fn disconnect_is_noticed_behind_unread_bytes() {
    for (mut ours, theirs) in [tcp_pair().await, unix_pair()] {
        ours.write_all(b"x").await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(50), theirs.wait_until_closed_by_peer());
        assert!(waiting.await.is_err(), "it is still there");
        drop(ours);
        theirs.wait_until_closed_by_peer().await;
    }
    let (mut ours, mut theirs) = unix_pair();
    ours.write_all(b"x").await.unwrap();
    let (ours, theirs) = (ours.detach().unwrap(), theirs.detach().unwrap());
    assert!(ours.is_idle() && !theirs.is_idle());
    drop(theirs);
    assert!(!ours.is_idle());
}

#[tokio::test]
async fn socket_options_are_applied() {
    let (ours, _theirs) = tcp_pair().await;
    let options = SocketOptions { nodelay: true, keepalive: Some(Duration::from_secs(60)) };
    ours.set_options(options).unwrap();
    let Stream::Tcp(stream) = &ours else { panic!("{ours:?}") };
    let socket = SockRef::from(stream);
    assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(20));
    ours.set_options(SocketOptions { nodelay: false, keepalive: None }).unwrap();
    let Stream::Tcp(stream) = &ours else { panic!("{ours:?}") };
    assert!(!stream.nodelay().unwrap());
    let (unix, _other) = unix_pair();
    unix.set_options(options).unwrap();
}

#[tokio::test]
async fn connection_info_contains_both_addresses() {
    let (ours, theirs) = tcp_pair().await;
    let (ours, theirs) = (ours.connection_info().unwrap(), theirs.connection_info().unwrap());
    assert_eq!((&ours.address, &ours.local_address), (&theirs.local_address, &theirs.address));
    assert!(ours.is_local && !ours.unix_socket && ours.descriptor > 0);
    let (unix, _other) = unix_pair();
    let link = unix.connection_info().unwrap();
    assert!(link.is_local && link.unix_socket);
    assert_eq!(link.address, ":0");
}
