#!/usr/bin/env python3
"""User names and passwords by paho-mqtt (version 2 of its API) against a running broker that has
the user `ann` with the password `pencil` and serves nobody else.

    paho_auth.py --port PORT --mqtt 3|4|5

Prints `passed` and exits 0, or raises. Every wait is bounded.
"""
import argparse
import queue
import sys

import paho.mqtt.client as mqtt

PATIENCE_S = 30
PROTOCOLS = {3: mqtt.MQTTv31, 4: mqtt.MQTTv311, 5: mqtt.MQTTv5}
# paho says the return codes of 3.x in the words of version 5.
SUCCESS, BAD, NOT_AUTHORIZED = 0x00, 0x86, 0x87


def attempt(opts, user, password):
    """Connects; the client and CONNACK's reason."""
    answers = queue.Queue()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id="auth", reconnect_on_failure=False,
        protocol=PROTOCOLS[opts.mqtt])
    client.on_connect = lambda c, u, flags, reason, props: answers.put(reason.value)
    if user is not None:
        client.username_pw_set(user, password)
    client.connect("127.0.0.1", opts.port, keepalive=60)
    client.loop_start()
    return client, answers.get(timeout=PATIENCE_S)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--port", type=int, required=True)
    ap.add_argument("--mqtt", type=int, choices=PROTOCOLS, required=True)
    opts = ap.parse_args()

    for user, password, wanted in (
            ("ann", "Pencil", BAD), ("ann", "", BAD), ("ann", None, BAD), ("eve", "pencil", BAD),
            (None, None, NOT_AUTHORIZED)):
        client, reason = attempt(opts, user, password)
        client.loop_stop()
        assert reason == wanted, (user, password, reason)

    client, reason = attempt(opts, "ann", "pencil")
    assert reason == SUCCESS, reason
    granted, messages = queue.Queue(), queue.Queue()
    client.on_subscribe = lambda c, u, mid, codes, props: granted.put(codes)
    client.on_message = lambda c, u, message: messages.put(message.payload)
    client.subscribe("auth/echo", 1)
    granted.get(timeout=PATIENCE_S)
    client.publish("auth/echo", b"hello", 1)
    assert messages.get(timeout=PATIENCE_S) == b"hello"
    client.disconnect()
    client.loop_stop()
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
