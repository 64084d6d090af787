//! Reads messages back from the journal when a shard wants them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use journal::{Position, ReadError, Reader};
use rt_abstract::{Notify, Runtime, Shared, Shutdown};

use super::core::{Core, enter, wall_offset_ms};
use crate::messages::{Lately, message_of};
use crate::node::Node;
use crate::shard::{Fetch, Lost};

/// How long reading rests when the system could not.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);

type Read = Result<Arc<mqtt::session::Message>, Lost>;

/// Until the node stops.
pub(super) async fn fetch_loop<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    fetch: Arc<Notify>,
    stop: Shutdown,
) {
    let Some(messages) = node.messages() else { return };
    let reader = messages.journal().reader::<R>();
    let mut lately = Lately::default();
    while !stop.is_triggered() {
        let Some(wanted) = enter(&core, |core, _| core.shard.take_fetch()) else {
            fetch.notified().await;
            continue;
        };
        let wall_offset_ms = wall_offset_ms::<R>();
        let (read, is_whole) = read(&reader, &mut lately, &wanted, wall_offset_ms).await;
        enter(&core, |core, now_ms| core.shard.on_fetched(wanted, read, now_ms));
        if !is_whole {
            R::sleep(REST_AFTER_ERROR).await;
        }
    }
}

/// Reads all at once. False: not all, because the system could not.
async fn read<R: Runtime>(
    reader: &Reader<R>,
    lately: &mut Lately,
    wanted: &Fetch,
    wall_offset_ms: u64,
) -> (Vec<Read>, bool) {
    let known: Vec<_> =
        wanted.positions().map(|position| (position, lately.get(position))).collect();
    let missing = known.iter().filter(|(_, known)| known.is_none());
    let mut found =
        join_all(missing.map(|(at, _)| reader.read(Position::new(*at)))).await.into_iter();
    let mut read = Vec::with_capacity(known.len());
    for (position, known) in known {
        let message = match known {
            Some(message) => Ok(message),
            None => match found.next() {
                Some(Ok(bytes)) => message_of(&bytes, wall_offset_ms)
                    .map(Arc::new)
                    .inspect(|message| lately.put(position, message))
                    .map_err(|error| error.to_string()),
                Some(Err(error @ ReadError::Io { .. })) => {
                    tracing::error!(%error, "a kept message cannot be read now: trying again");
                    return (read, false);
                }
                Some(Err(error)) => Err(error.to_string()),
                None => return (read, false),
            },
        };
        read.push(message.map_err(|error| {
            tracing::error!(position, error, "a kept message is lost: its record is damaged");
            Lost
        }));
    }
    (read, true)
}
