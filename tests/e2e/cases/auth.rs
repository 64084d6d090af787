//! Who may connect: `gearbox passwd`, passwords by paho, SCRAM-SHA-256 by hand.

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::cases::paho::python;
use crate::column::Column;
use crate::process::Process;
use crate::raw::{self, CONNACK, DISCONNECT, PUBLISH, Packet, Raw, connect_body, packet, string};
use crate::wait::{PATIENCE, until};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub const CASES: &[Case] = &[
    Case::new("auth::paho_v3_1", |column| paho(column, 3)),
    Case::new("auth::paho_v3_1_1", |column| paho(column, 4)),
    Case::smoke("auth::paho_v5", |column| paho(column, 5)),
    Case::new("auth::scram", scram),
    Case::new("auth::a_storm_of_passwords", storm),
    Case::new("auth::users_are_read_again", reload),
    Case::new("auth::passwd", passwd_program),
    Case::new("auth::wrong_configuration", wrong_configuration),
];

const METHOD: &[u8] = b"SCRAM-SHA-256";
const AUTH: u8 = 0xF0;
const FIRST: &str = "n,,n=ann,r=fyko+d2lbbFgONRv9qkxdawL";

/// A folder with a users file that holds `ann` with the password `pencil`.
fn users(column: &Column) -> (TempDir, PathBuf) {
    let folder = temporary_folder();
    let file = folder.path().join("users");
    let output = passwd(column, &file, &["ann"], "pencil\n");
    assert!(output.status.success(), "{output:?}");
    (folder, file)
}

fn passwd(column: &Column, file: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(&column.program)
        .arg("passwd")
        .arg(file)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // With --delete nothing is read.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

/// A broker that serves `ann` alone.
fn start(column: &Column, file: &Path) -> Broker {
    let environment = [
        ("GEARBOX_AUTH__ALLOW_ANONYMOUS", "false"),
        ("GEARBOX_AUTH__USERS_FILE", file.to_str().expect("a path in UTF-8")),
    ];
    Broker::start_with(column, &Options { environment: &environment, ..Options::default() })
}

fn paho(column: &Column, version: u8) {
    let (_folder, file) = users(column);
    let broker = start(column, &file);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/paho_auth.py");
    let mut command = Command::new(python());
    let (port, version) = (broker.mqtt.port().to_string(), version.to_string());
    command.arg("-B").arg(script).args(["--port", &port, "--mqtt", &version]);
    let name = format!("paho auth v{version} (PYTHON must import paho.mqtt 2)");
    let (status, lines) = Process::start(&name, &mut command).finish(Duration::from_secs(90));
    let passed = lines.last().is_some_and(|line| line == "passed");
    assert!(status.success() && passed, "{name}: {status}");
    // five of them failed
    assert_eq!(broker.metric("authentication_failures").iter().sum::<u64>(), 5);
}

/// Property bytes: the method, and data.
fn properties(data: &str) -> Vec<u8> {
    [&[0x15][..], &string(METHOD), &[0x16], &string(data)].concat()
}

fn auth(reason: u8, data: &str) -> Vec<u8> {
    let properties = properties(data);
    assert!(properties.len() < 256, "these tests send short messages");
    let length = properties.len();
    let length = if length < 128 { vec![length as u8] } else { vec![length as u8 | 0x80, 1] };
    packet(AUTH, &[&[reason][..], &length, &properties].concat())
}

/// Sends a CONNECT with the client's first message.
fn ask(broker: &Broker, id: &str, first: &str) -> Raw {
    let mut client = Raw::open(broker.mqtt, 5);
    let properties = properties(first);
    client.send(&packet(0x10, &connect_body(5, 0x02, 60, &properties, &string(id))));
    client
}

/// The authentication data among the properties of an AUTH or CONNACK packet, whose method is
/// checked. `at` is where the property length stands.
fn data(packet: &Packet, at: usize) -> String {
    let mut rest = &packet.body[at..];
    rest = if rest[0] < 0x80 { &rest[1..] } else { &rest[2..] };
    let (mut method, mut data) = (None, None);
    while let [id, tail @ ..] = rest {
        let size = match id {
            0x21 | 0x22 | 0x13 => 2,
            0x11 | 0x27 => 4,
            _ => {
                let length = usize::from(u16::from_be_bytes([tail[0], tail[1]]));
                match id {
                    0x15 => method = Some(&tail[2..2 + length]),
                    0x16 => data = Some(&tail[2..2 + length]),
                    _ => {}
                }
                2 + length
            }
        };
        rest = &tail[size..];
    }
    assert_eq!(method, Some(METHOD), "{packet:?}");
    String::from_utf8(data.unwrap_or_default().to_vec()).expect("SCRAM is text")
}

fn hmac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    mac.update(data);
    mac.finalize().into_bytes().into()
}

/// The client's last message, and what the server must answer.
fn prove(password: &str, answer: &str) -> (String, String) {
    let part = |name| {
        answer
            .split(',')
            .find_map(|part| part.strip_prefix(name))
            .expect("a server's first message")
    };
    let salt = STANDARD.decode(part("s=")).expect("base64");
    let iterations = part("i=").parse().expect("a number");
    let mut salted = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, iterations, &mut salted);
    let key = hmac(&salted, b"Client Key");
    let last = format!("c=biws,r={}", part("r="));
    let message = format!("{},{answer},{last}", &FIRST[3..]);
    let signed = hmac(&Sha256::digest(key), message.as_bytes());
    let proof: Vec<u8> = key.iter().zip(signed).map(|(a, b)| a ^ b).collect();
    let verifier = hmac(&hmac(&salted, b"Server Key"), message.as_bytes());
    let (proof, verifier) = (STANDARD.encode(proof), STANDARD.encode(verifier));
    (format!("{last},p={proof}"), format!("v={verifier}"))
}

fn scram(column: &Column) {
    let (_folder, file) = users(column);
    let broker = start(column, &file);

    let mut client = ask(&broker, "scram", FIRST);
    let challenge = client.expect(AUTH);
    assert_eq!(challenge.body[0], 0x18);
    let (last, verifier) = prove("pencil", &data(&challenge, 1));
    client.send(&auth(0x18, &last));
    let connack = client.expect(CONNACK);
    assert_eq!(connack.reason(), Some(0));
    assert_eq!(data(&connack, 2), verifier, "the server proves itself too");
    client.subscribe("scram/t", 0);

    // Once more, with messages in between.
    client.send(&auth(0x19, FIRST));
    let challenge = client.expect(AUTH);
    client.send(&raw::publish(5, "scram/t", b"meanwhile", 0, 0));
    assert_eq!(client.expect(PUBLISH).publish(5).1, b"meanwhile");
    let (last, verifier) = prove("pencil", &data(&challenge, 1));
    client.send(&auth(0x18, &last));
    let done = client.expect(AUTH);
    assert_eq!(done.body.first(), Some(&0));
    assert_eq!(data(&done, 1), verifier);

    // And once more, failing.
    client.send(&auth(0x19, FIRST));
    client.expect(AUTH);
    client.send(&auth(0x18, &last));
    assert_eq!(client.expect(DISCONNECT).reason(), Some(0x87), "a replayed message");
    client.until_closed(PATIENCE).expect("closed");

    for (first, password, reason) in
        [(FIRST, "wrong", 0x86), ("n,,n=eve,r=fyko+d2lbbFgONRv9qkxdawL", "pencil", 0x86)]
    {
        let mut client = ask(&broker, "scram", first);
        let challenge = client.expect(AUTH);
        client.send(&auth(0x18, &prove(password, &data(&challenge, 1)).0));
        assert_eq!(client.expect(CONNACK).reason(), Some(reason));
        client.until_closed(PATIENCE).expect("closed");
    }

    let mut client = ask(&broker, "scram", FIRST);
    client.expect(AUTH);
    client.send(&[0xC0, 0]);
    assert_eq!(client.expect(CONNACK).reason(), Some(0x82), "only AUTH may come now");
    client.until_closed(PATIENCE).expect("closed");

    let method = [&[0x15][..], &string("PLAIN")].concat();
    let mut client = Raw::open(broker.mqtt, 5);
    client.send(&packet(0x10, &connect_body(5, 0x02, 60, &method, &string("x"))));
    assert_eq!(client.expect(CONNACK).reason(), Some(0x8C));
    client.until_closed(PATIENCE).expect("closed");
}

fn login(id: &str, password: &str) -> Vec<u8> {
    let payload = [string(id), string("ann"), string(password)].concat();
    packet(0x10, &connect_body(4, 0xC2, 60, &[], &payload))
}

/// Many at once, with a PINGREQ behind the CONNECT that must not overtake it; somebody who is
/// connected already is served meanwhile.
fn storm(column: &Column) {
    let (_folder, file) = users(column);
    let broker = start(column, &file);
    let mut neighbour = Raw::open(broker.mqtt, 4);
    neighbour.send(&login("neighbour", "pencil"));
    neighbour.expect(CONNACK);
    let mut clients: Vec<_> = (0..60)
        .map(|n| {
            let mut client = Raw::open(broker.mqtt, 4);
            let password = if n % 3 == 0 { "wrong" } else { "pencil" };
            client.send(&[login(&format!("storm-{n}"), password), vec![0xC0, 0]].concat());
            client
        })
        .collect();
    neighbour.ping();
    for (n, client) in clients.iter_mut().enumerate() {
        let reason = client.expect(CONNACK).reason();
        if n % 3 == 0 {
            assert_eq!(reason, Some(4));
            assert_eq!(client.until_closed(PATIENCE), Ok(Vec::new()));
        } else {
            assert_eq!(reason, Some(0));
            client.expect(raw::PINGRESP);
        }
    }
}

fn reload(column: &Column) {
    let (_folder, file) = users(column);
    let mut broker = start(column, &file);
    let reason = |password: &str| {
        let mut client = Raw::open(broker.mqtt, 4);
        client.send(&login("reload", password));
        client.expect(CONNACK).reason()
    };
    let hang_up = || {
        let pid = i32::try_from(broker.pid()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::HUP)
            .expect("the broker takes a signal");
    };
    let mut connected = Raw::open(broker.mqtt, 4);
    connected.send(&login("connected", "pencil"));
    assert_eq!(connected.expect(CONNACK).reason(), Some(0));

    assert!(passwd(column, &file, &["ann"], "crayon").status.success());
    assert_eq!(reason("crayon"), Some(4), "not before it is told");
    hang_up();
    until("the new password", || (reason("crayon") == Some(0)).then_some(()));
    assert_eq!(reason("pencil"), Some(4));
    connected.ping();

    std::fs::write(&file, "damaged\n").expect("the file can be written");
    hang_up();
    // Whether the signal was handled yet cannot be seen: before and after, the old users count.
    assert_eq!(reason("crayon"), Some(0));
    std::fs::remove_file(&file).expect("the file can be removed");
    assert!(passwd(column, &file, &["ann"], "chalk").status.success());
    hang_up();
    until("the next password", || (reason("chalk") == Some(0)).then_some(()));
    broker.assert_running();
}

fn passwd_program(column: &Column) {
    let (_folder, file) = users(column);
    let text = |path: &Path| std::fs::read_to_string(path).expect("the file can be read");
    let first = text(&file);
    assert!(first.starts_with("ann:SCRAM-SHA-256$15000:") && first.ends_with("=\n"), "{first}");
    let mode = std::fs::metadata(&file).expect("the file exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let said = |arguments: &[&str], input: &str| {
        let output = passwd(column, &file, arguments, input);
        let both = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&both).into_owned())
    };
    let (code, out) = said(&["bob", "--iterations", "4096"], "two\r\nlines\n");
    assert!(code == Some(0) && out.ends_with("users: user 'bob' added\n"), "{out}");
    let (code, out) = said(&["ann"], "other\n");
    assert!(code == Some(0) && out.ends_with("users: user 'ann' changed\n"), "{out}");
    let second = text(&file);
    assert!(second.contains("bob:SCRAM-SHA-256$4096:") && !second.contains(first.trim()));
    for (arguments, input, message) in [
        (&["ann"][..], "\n", "the password is empty"),
        (&["ann"], "a\u{7}", "characters that passwords must not have"),
        (&["#ann"], "x", "cannot begin with '#'"),
        (&["eve", "--delete"], "", "no user 'eve' in it"),
    ] {
        let (code, out) = said(arguments, input);
        assert_eq!(code, Some(1), "{out}");
        assert!(out.starts_with("gearbox: error: ") && out.contains(message), "{out}");
    }
    assert_eq!(said(&["ann", "--iterations", "4095"], "x").0, Some(2));
    assert_eq!(text(&file), second, "an error changes nothing");
    let (code, out) = said(&["bob", "--delete"], "");
    assert!(code == Some(0) && out.ends_with("users: user 'bob' removed\n"), "{out}");
    assert!(!text(&file).contains("bob"));
}

fn wrong_configuration(column: &Column) {
    let folder = temporary_folder();
    let file = folder.path().join("users");
    let check = |command: &str, variables: &[(&str, &str)]| {
        let output = Command::new(&column.program)
            .args(command.split(' '))
            .current_dir(&folder)
            .envs(variables.iter().copied())
            .output()
            .expect("the program runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let name = file.to_str().expect("a path in UTF-8");
    let serve = "serve --ephemeral --listen 127.0.0.1:0 --admin off";
    for command in ["config check", serve] {
        let line = check(command, &[("GEARBOX_AUTH__ALLOW_ANONYMOUS", "false")]);
        assert!(line.contains("auth.allow_anonymous: false needs auth.users_file"), "{line}");
        let _ = std::fs::remove_file(&file);
        let line = check(command, &[("GEARBOX_AUTH__USERS_FILE", name)]);
        assert!(line.contains(&format!("cannot read the users file {name}: ")), "{line}");
        std::fs::write(&file, "# users\nann:pencil\n").expect("the file can be written");
        let line = check(command, &[("GEARBOX_AUTH__USERS_FILE", name)]);
        assert!(line.contains(&format!("users file {name}: line 2: ")), "{line}");
    }
}
