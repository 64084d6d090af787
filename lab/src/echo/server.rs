//! A server as a process: it says where it listens, and ends when its standard input does.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::ChildStdout;

use rt_abstract::{Address, bind, bound_address};

use super::{Kind, bare_epoll, bare_ring, null_broker};
use crate::backend::Column;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1_024;
/// Before the address.
const READY: &str = "listening on ";

/// Arguments of `echo-server`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which.
    #[arg(long, value_enum)]
    pub server: Kind,
    #[command(flatten)]
    pub column: Column,
}

/// Serves until standard input ends.
pub fn run(args: &Args) -> Result<(), String> {
    let (listener, address) = listen().map_err(|error| format!("cannot listen: {error}"))?;
    println!("{READY}{address}");
    std::thread::spawn(|| {
        // Whoever started it is gone, or wants it to go.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match args.server {
        Kind::NullBroker => {
            args.column.with(null_broker::Serve { listener, options: args.column.options(1) })?
        }
        Kind::Epoll => bare_epoll::serve(listener),
        Kind::IoUring => bare_ring::serve(listener),
    }
    .map_err(|error| error.to_string())
}

/// The address that a server has printed.
pub fn address_from(output: Option<ChildStdout>) -> Result<SocketAddr, String> {
    let mut line = String::new();
    if let Some(output) = output {
        let _ = BufReader::new(output).read_line(&mut line); // an empty line says it
    }
    let address = line.trim().strip_prefix(READY).and_then(|text| text.parse().ok());
    address.ok_or_else(|| "a server ended before it listened".to_owned())
}

fn listen() -> std::io::Result<(OwnedFd, Address)> {
    let listener = bind(&Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))), BACKLOG)?;
    let address = bound_address(&listener)?;
    Ok((listener, address))
}
