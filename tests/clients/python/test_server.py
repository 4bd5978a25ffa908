"""redis-py against one server: transactions and messages."""

import time

import pytest
import redis


def test_pipeline_is_a_transaction(client):
    with client.pipeline(transaction=True) as pipe:
        assert pipe.set("a", 1).incr("a").get("a").execute() == [True, 2, "2"]
        with pytest.raises(redis.exceptions.ResponseError, match="value is not an integer"):
            pipe.set("a", "x").incr("a").set("b", 1).execute()
    assert (client.get("a"), client.get("b")) == ("x", "1")


def test_changed_watched_key_aborts_transaction(client):
    client.set("balance", 10)
    tries = []

    def withdraw(pipe):
        balance = int(pipe.get("balance"))
        if not tries:
            client.set("balance", 7)
        tries.append(balance)
        pipe.multi()
        pipe.set("balance", balance - 1)

    assert client.transaction(withdraw, "balance") == [True]
    assert (tries, client.get("balance")) == ([10, 7], "6")


def next_message(subscription):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        message = subscription.get_message(timeout=1)
        if message:
            return message
    raise AssertionError("no message came")


def test_pubsub_messages(client):
    with client.pubsub() as subscription:
        subscription.subscribe("news")
        subscription.psubscribe("n*")
        assert [next_message(subscription)["type"] for _ in range(2)] == ["subscribe", "psubscribe"]
        assert client.pubsub_numsub("news") == [("news", 1)]
        assert client.publish("news", "hi") == 2
        expected = {"type": "message", "pattern": None, "channel": "news", "data": "hi"}
        assert next_message(subscription) == expected
        assert next_message(subscription)["type"] == "pmessage"
        subscription.unsubscribe()
        assert next_message(subscription)["type"] == "unsubscribe"
        assert client.publish("news", "again") == 1
        assert next_message(subscription)["data"] == "again"


def test_sharded_pubsub_messages(client):
    with client.pubsub() as subscription:
        subscription.ssubscribe("orders")
        assert next_message(subscription)["type"] == "ssubscribe"
        assert client.spublish("orders", "hi") == 1
        message = next_message(subscription)
        assert (message["type"], message["data"]) == ("smessage", "hi")
