#!/usr/bin/env python3
"""End-to-end cases driven by paho-mqtt (version 2 of its API) against a running broker.

    paho_cases.py --port PORT --mqtt 4|5 CASE

Prints `passed` and exits 0, or raises. Every wait is bounded; nothing waits for silence: where
something must not come, a later message that must come stands as the fence.
"""
import argparse
import queue
import socket
import sys
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

PATIENCE_S = 30
TAKEN_OVER = 0x8E


class Client:
    """A connected paho client with its network loop in a thread."""

    def __init__(self, opts, name, clean=True, will=None):
        self.opts = opts
        self.messages = queue.Queue(10_000)
        self.granted = queue.Queue(100)
        self.connected = threading.Event()
        self.gone = threading.Event()
        self.reason = None
        self.session_present = None
        v5 = opts.mqtt == 5
        extra = {} if v5 else {"clean_session": clean}
        self.paho = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=name, reconnect_on_failure=False,
            protocol=mqtt.MQTTv5 if v5 else mqtt.MQTTv311, **extra)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_subscribe = lambda c, u, mid, codes, props: self.granted.put(codes)
        self.paho.on_message = lambda c, u, message: self.messages.put(message)
        if will:
            self.paho.will_set(*will)
        extra = {}
        if v5:
            props = Properties(PacketTypes.CONNECT)
            props.SessionExpiryInterval = 0 if clean else 3600
            extra = {"clean_start": clean, "properties": props}
        self.paho.connect("127.0.0.1", opts.port, keepalive=60, **extra)
        self.paho.loop_start()
        assert self.connected.wait(PATIENCE_S), f"{name}: no CONNACK"

    def _on_connect(self, client, userdata, flags, reason, props):
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self.connected.set()

    def _on_disconnect(self, client, userdata, flags, reason, props):
        self.reason = reason
        self.gone.set()

    def subscribe(self, topic, qos):
        self.paho.subscribe(topic, qos)
        codes = self.granted.get(timeout=PATIENCE_S)
        assert [c.value for c in codes] == [qos], codes

    def publish(self, topic, payload, qos, retain=False, properties=None):
        """Publishes and waits for the acknowledgement."""
        info = self.paho.publish(topic, payload, qos, retain, properties)
        info.wait_for_publish(PATIENCE_S)
        assert info.is_published(), f"{topic}: not acknowledged"

    def message(self):
        return self.messages.get(timeout=PATIENCE_S)

    def expect(self, topic, payload, qos, retain=False):
        got = self.message()
        seen = (got.topic, bytes(got.payload), got.qos, bool(got.retain))
        assert seen == (topic, payload, qos, retain), seen
        return got

    def disconnect(self):
        self.paho.disconnect()
        assert self.gone.wait(PATIENCE_S), "no end after DISCONNECT"
        self.paho.loop_stop()

    def cut(self):
        """Ends the connection without a DISCONNECT."""
        self.paho.socket().shutdown(socket.SHUT_RDWR)
        assert self.gone.wait(PATIENCE_S), "no end after the socket closed"
        self.paho.loop_stop()


def qos(opts):
    """All nine pairs of published and subscribed QoS."""
    pub = Client(opts, "qos-pub")
    for granted in (0, 1, 2):
        sub = Client(opts, f"qos-sub-{granted}")
        sub.subscribe(f"qos/{granted}/+", granted)
        for sent in (0, 1, 2):
            topic = f"qos/{granted}/{sent}"
            pub.publish(topic, b"payload", sent)
            sub.expect(topic, b"payload", min(sent, granted))
        sub.disconnect()
    pub.disconnect()


def retained(opts):
    """Set, replace and clear."""
    pub = Client(opts, "retained-pub")
    pub.publish("kept/a", b"one", 1, retain=True)
    pub.publish("kept/a", b"two", 2, retain=True)
    pub.publish("kept/b", b"three", 0, retain=True)
    sub = Client(opts, "retained-sub")
    sub.subscribe("kept/a", 1)
    sub.expect("kept/a", b"two", 1, retain=True)
    sub.subscribe("kept/b", 1)
    sub.expect("kept/b", b"three", 0, retain=True)
    pub.publish("kept/a", b"", 1, retain=True)
    sub.expect("kept/a", b"", 1)
    late = Client(opts, "retained-late")
    late.subscribe("kept/a", 1)
    pub.publish("kept/a", b"fence", 1)
    late.expect("kept/a", b"fence", 1)
    for client in (pub, sub, late):
        client.disconnect()


def will(opts):
    """Sent when the socket closes abruptly, not after DISCONNECT."""
    watcher = Client(opts, "will-watcher")
    watcher.subscribe("will/+", 2)
    Client(opts, "will-polite", will=("will/polite", b"no", 1, False)).disconnect()
    Client(opts, "will-abrupt", will=("will/abrupt", b"yes", 2, True)).cut()
    watcher.expect("will/abrupt", b"yes", 2)
    late = Client(opts, "will-late")
    late.subscribe("will/abrupt", 1)
    late.expect("will/abrupt", b"yes", 1, retain=True)
    watcher.publish("will/abrupt", b"", 1, retain=True)
    watcher.expect("will/abrupt", b"", 1)
    watcher.disconnect()
    late.disconnect()


def takeover(opts):
    """A second connection of the same client id ends the first."""
    for n in range(6):
        old = Client(opts, f"twin-{n}")
        new = Client(opts, f"twin-{n}")
        assert old.gone.wait(PATIENCE_S), "the old connection lives on"
        old.paho.loop_stop()
        if opts.mqtt == 5:
            assert old.reason.value == TAKEN_OVER, old.reason
        new.subscribe("twin", 1)
        new.publish("twin", b"mine", 1)
        new.expect("twin", b"mine", 1)
        new.disconnect()


def session_resume(opts):
    """QoS 1 and 2 messages wait, in order, for a session that was left, or cut."""
    pub = Client(opts, "resume-pub")
    for way in ("disconnect", "cut"):
        name = f"resume-{way}"
        sub = Client(opts, name, clean=False)
        assert not sub.session_present
        sub.subscribe(f"resume/{way}", 2)
        getattr(sub, way)()
        for n in range(20):
            pub.publish(f"resume/{way}", str(n).encode(), 1 + n % 2)
        sub = Client(opts, name, clean=False)
        assert sub.session_present
        # paho hands a QoS 2 message over at its PUBREL: the order holds within a QoS only.
        got = [sub.message() for _ in range(20)]
        for level in (1, 2):
            seen = [int(m.payload) for m in got if m.qos == level]
            assert seen == list(range(level - 1, 20, 2)), seen
        sub.disconnect()
        sub = Client(opts, name, clean=True)
        assert not sub.session_present
        pub.publish(f"resume/{way}", b"unseen", 1)
        sub.subscribe("resume/fence", 1)
        pub.publish("resume/fence", b"fence", 1)
        sub.expect("resume/fence", b"fence", 1)
        sub.disconnect()
    pub.disconnect()


def one_mebibyte(opts):
    """A large payload arrives whole at every QoS."""
    payload = bytes(n % 251 for n in range(1 << 20))
    sub = Client(opts, "large-sub")
    sub.subscribe("large/+", 2)
    pub = Client(opts, "large-pub")
    for sent in (0, 1, 2):
        pub.publish(f"large/{sent}", payload, sent)
        got = sub.message()
        assert (got.topic, got.qos, len(got.payload)) == (f"large/{sent}", sent, len(payload))
        assert got.payload == payload, "the payload changed on its way"
    pub.disconnect()
    sub.disconnect()


def properties(opts):
    """What a publisher says about its message reaches the subscriber."""
    sub = Client(opts, "props-sub")
    options = SubscribeOptions(qos=1, retainAsPublished=True)
    props = Properties(PacketTypes.SUBSCRIBE)
    props.SubscriptionIdentifier = 4711
    sub.paho.subscribe("props/+", options=options, properties=props)
    assert [c.value for c in sub.granted.get(timeout=PATIENCE_S)] == [1]
    pub = Client(opts, "props-pub")
    user = [("b", "2"), ("a", "1"), ("b", "3"), ("ключ", "значение"), ("a", "1")]
    props = Properties(PacketTypes.PUBLISH)
    props.PayloadFormatIndicator = 1
    props.MessageExpiryInterval = 1000
    props.ResponseTopic = "props/answer"
    props.CorrelationData = bytes(range(256))
    props.ContentType = "text/plain; charset=utf-8"
    props.UserProperty = user
    for sent in (0, 1, 2):
        pub.publish("props/a", b"with", sent, retain=sent == 1, properties=props)
        got = sub.message()
        assert (got.topic, got.payload, got.qos) == ("props/a", b"with", min(sent, 1))
        assert bool(got.retain) == (sent == 1), "retain as published"
        check_properties(got.properties, user)
        assert got.properties.SubscriptionIdentifier == [4711]
    late = Client(opts, "props-late")
    late.subscribe("props/a", 1)
    check_properties(late.expect("props/a", b"with", 1, retain=True).properties, user)
    pub.publish("props/a", b"", 1, retain=True)
    for client in (pub, sub, late):
        client.disconnect()


def check_properties(got, user):
    assert got.PayloadFormatIndicator == 1
    assert 990 <= got.MessageExpiryInterval <= 1000, got.MessageExpiryInterval
    assert got.ResponseTopic == "props/answer"
    assert got.CorrelationData == bytes(range(256))
    assert got.ContentType == "text/plain; charset=utf-8"
    assert got.UserProperty == user, got.UserProperty


CASES = (qos, retained, will, takeover, session_resume, one_mebibyte, properties)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--port", type=int, required=True)
    ap.add_argument("--mqtt", type=int, choices=(4, 5), required=True)
    ap.add_argument("case", choices=[c.__name__ for c in CASES])
    opts = ap.parse_args()
    next(c for c in CASES if c.__name__ == opts.case)(opts)
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
