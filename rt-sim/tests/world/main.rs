//! What a world promises: the same history for the same seed, every kind of fault, time that costs
//! nothing.

mod clocks;
mod disks;
mod histories;
mod network;
mod nodes;

use std::future::Future;
use std::net::SocketAddr;

use rt_abstract::{Address, Runtime};
use rt_sim::{Config, Control, NodeId, Sim, Stream, World};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// Runs a test's future in a world of its own.
fn in_world<F: Future>(seed: u64, config: Config, test: impl FnOnce(Control) -> F) -> F::Output {
    let world = World::new(seed, config);
    let control = world.control();
    world.block_on(test(control)).expect("the world comes to its end")
}

/// The same with the usual configuration and several seeds.
fn in_worlds<F: Future>(test: impl Fn(Control) -> F) {
    (1..=8).for_each(|seed| drop(in_world(seed, Config::default(), &test)));
}

fn address(node: NodeId, port: u16) -> Address {
    Address::Tcp(SocketAddr::from((node.ip(), port)))
}

/// A listener on a node, at port 1000.
fn listen(control: Control, node: NodeId) -> rt_sim::Listener {
    control.on_node(node, || {
        let any = Address::Tcp(SocketAddr::from(([0, 0, 0, 0], 1000)));
        Sim::listener(Sim::bind(&any, 8).expect("binds")).expect("listens")
    })
}

/// A connection from the clients to a node.
async fn pair(control: Control, node: NodeId) -> (Stream, Stream) {
    use rt_abstract::Listener;
    let mut listener = listen(control, node);
    let near = Sim::connect(&address(node, 1000)).await.expect("connects");
    let (far, _) = listener.accept().await.expect("accepts");
    (near, far)
}
