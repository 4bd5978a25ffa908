use crate::testing::Client;

#[test]
fn smoke() {
    let mut client = Client::new();
    client.table(&[("eval \"return 1\" 0", ":1")]);
}
