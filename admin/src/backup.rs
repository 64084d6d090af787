//! `/backup`: POST begins one, GET says how the last one is. It takes longer than a request may, so it
//! is a task of its own, which the server waits for at its end.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker_core::Node;
use broker_core::backup::{Counts, back_up, check_target};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use rt_abstract::{Runtime, Shared};
use serde::{Deserialize, Serialize};

use crate::respond::{json, not_allowed, text};

const MAX_BODY_BYTES: usize = 8 << 10;

/// What the backups of this process have come to: one at a time.
pub(crate) struct Backups<R: Runtime> {
    status: Arc<Mutex<BackupStatus>>,
    task: Shared<Option<R::JoinHandle<()>>>,
}

/// How the last backup is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupStatus {
    /// Which one since the start of the process; 0 while there was none.
    pub number: u64,
    /// Where it goes.
    pub dir: PathBuf,
    /// How it is.
    pub state: BackupState,
}

/// See [`BackupStatus`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackupState {
    /// There was none.
    #[default]
    None,
    /// It is being written.
    Running,
    /// It is complete.
    Done(Counts),
    /// It will not be complete: why.
    Failed(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    dir: PathBuf,
}

impl<R: Runtime> Backups<R> {
    pub(crate) fn new() -> Self {
        Self { status: Arc::default(), task: Shared::new(None) }
    }

    /// The answer to a request for `/backup`; other requests come back.
    pub(crate) async fn respond(
        &self,
        request: Request<Incoming>,
        node: &Arc<Node>,
    ) -> Result<Response<Full<Bytes>>, Request<Incoming>> {
        if request.uri().path() != "/backup" {
            return Err(request);
        }
        if node.meta().is_none() {
            let why = "this node keeps nothing: there is nothing to back up\n";
            return Ok(text(StatusCode::NOT_FOUND, why));
        }
        Ok(match *request.method() {
            Method::GET | Method::HEAD => json(StatusCode::OK, &*lock(&self.status)),
            Method::POST => match order(request).await {
                Ok(dir) => self.begin(node, dir),
                Err(refused) => refused,
            },
            _ => not_allowed("GET, HEAD, POST"),
        })
    }

    /// Waits for the one that is being written; the node's end ends it soon.
    pub(crate) async fn end(self) {
        if let Some(task) = self.task.with(Option::take)
            && let Err(panicked) = task.await
        {
            tracing::error!("the backup failed: {panicked}");
        }
    }

    fn begin(&self, node: &Arc<Node>, dir: PathBuf) -> Response<Full<Bytes>> {
        if !node.is_serving() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "starting or shutting down\n");
        }
        let mut status = lock(&self.status);
        if status.state == BackupState::Running {
            let why = format!("a backup to {} is being written\n", status.dir.display());
            return text(StatusCode::CONFLICT, why);
        }
        let number = status.number + 1;
        *status = BackupStatus { number, dir: dir.clone(), state: BackupState::Running };
        let answer = json(StatusCode::ACCEPTED, &*status);
        drop(status);
        let outcome = Outcome { status: self.status.clone(), state: None };
        // The one before, if there was one, has ended.
        let task = R::spawn(run::<R>(node.clone(), dir, outcome));
        drop(self.task.with(|slot| slot.replace(task)));
        answer
    }
}

impl<R: Runtime> Clone for Backups<R> {
    fn clone(&self) -> Self {
        Self { status: self.status.clone(), task: self.task.clone() }
    }
}

/// The directory that is asked for.
///
/// JSON alone is taken: a page in a browser of this machine may send a form or text to any address
/// without asking, but no JSON.
async fn order(request: Request<Incoming>) -> Result<PathBuf, Response<Full<Bytes>>> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_none_or(|kind| !kind.starts_with("application/json")) {
        return Err(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body is to be JSON\n"));
    }
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
    let Ok(body) = body else {
        return Err(text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large or was cut off\n"));
    };
    parse(&body.to_bytes()).map_err(|why| text(StatusCode::BAD_REQUEST, why + "\n"))
}

fn parse(body: &[u8]) -> Result<PathBuf, String> {
    let Order { dir } = serde_json::from_slice(body)
        .map_err(|error| format!("the body is to be {{\"dir\": \"/PATH\"}}: {error}"))?;
    check_target(&dir).map_err(|error| error.to_string())?;
    Ok(dir)
}

async fn run<R: Runtime>(node: Arc<Node>, dir: PathBuf, mut outcome: Outcome) {
    tracing::info!(dir = %dir.display(), "backup begins");
    outcome.state = Some(match back_up::<R>(&node, &dir).await {
        Ok(manifest) => done(&dir, manifest.counts),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "no backup");
            BackupState::Failed(error.to_string())
        }
    });
}

fn done(dir: &Path, counts: Counts) -> BackupState {
    tracing::info!(dir = %dir.display(), files = counts.files, bytes = counts.bytes, "backup complete");
    BackupState::Done(counts)
}

/// Tells how it ended, also by a panic.
struct Outcome {
    status: Arc<Mutex<BackupStatus>>,
    state: Option<BackupState>,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let state = self.state.take();
        lock(&self.status).state =
            state.unwrap_or_else(|| BackupState::Failed("it did not come to its end".into()));
    }
}

fn lock(status: &Mutex<BackupStatus>) -> MutexGuard<'_, BackupStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_a_place() {
        assert_eq!(parse(br#"{"dir": "/backups/1"}"#), Ok(PathBuf::from("/backups/1")));
        for wrong in ["", "{}", r#"{"dir": 1}"#, r#"{"dir": "x"}"#, r#"{"dir": "/x", "y": 1}"#] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_backup_that_vanishes_has_failed() {
        let status = Arc::new(Mutex::new(BackupStatus::default()));
        drop(Outcome { status: status.clone(), state: None });
        assert!(matches!(lock(&status).state, BackupState::Failed(_)));
        let state = Some(BackupState::Done(Counts::default()));
        drop(Outcome { status: status.clone(), state });
        let text = serde_json::to_string(&*lock(&status)).unwrap_or_default();
        let back: BackupStatus = serde_json::from_str(&text).unwrap_or_default();
        assert_eq!(back, *lock(&status), "{text}");
    }
}
