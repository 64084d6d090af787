//! A metadata directory that holds many retained messages.

use std::path::Path;
use std::time::Instant;

use meta::Handle;
use meta::command::Command;
use meta::record::StoredMessage;
use rt_abstract::{RunOptions, Runtime};

use crate::metadata::column::{Column, Visit, each_column};
use crate::metadata::nodes::Cluster;

const PER_PROPOSAL: u64 = 1_000;
const UNDER_WAY: usize = 16;

/// Adds `count` messages of 64 bytes to the directory, on the build's first column.
pub fn run(dir: &Path, count: u64) {
    each_column(&mut Fill { dir, count, done: false });
}

struct Fill<'a> {
    dir: &'a Path,
    count: u64,
    done: bool,
}

impl Visit for Fill<'_> {
    fn visit<R: Runtime>(&mut self, _: &Column) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let cluster = Cluster::of_directory::<R>(self.dir);
        let handle = cluster.leader::<R>();
        let start = Instant::now();
        let count = self.count;
        let filling = fill::<R>(handle.clone(), count);
        R::block_on(&RunOptions::default(), filling).expect("the executor runs");
        println!("{count} retained messages in {:.1} s", start.elapsed().as_secs_f64());
        drop(handle);
        cluster.stop();
    }
}

async fn fill<R: Runtime>(handle: Handle, count: u64) {
    let mut under_way = std::collections::VecDeque::new();
    let mut next = 0;
    while next < count {
        let end = count.min(next + PER_PROPOSAL);
        let commands = (next..end).map(|number| Command::Retain(message(number))).collect();
        let handle = handle.clone();
        under_way.push_back(R::spawn(async move { handle.propose(commands).await }));
        next = end;
        if under_way.len() >= UNDER_WAY
            && let Some(first) = under_way.pop_front()
        {
            first.await.expect("no panic").expect("the node answers");
        }
    }
    for proposal in under_way {
        proposal.await.expect("no panic").expect("the node answers");
    }
}

fn message(number: u64) -> StoredMessage {
    let (building, sensor) = (number / 1_000, number % 1_000);
    StoredMessage {
        topic: format!("building/{building}/floor/{}/sensor/{sensor}/state", sensor % 20),
        properties: Vec::new(),
        payload: vec![b'x'; 64],
        qos: 1,
        expires_at_ms: None,
    }
}
