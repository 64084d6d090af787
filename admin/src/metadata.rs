//! The cluster and the metadata: `/cluster` and `/config/KEY`.

use broker_core::Node;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ETAG, HeaderValue, IF_MATCH};
use hyper::{Method, Request, Response, StatusCode};
use meta::command::{Command, Refusal, Reply};
use meta::{Handle, ProposeError};

use crate::respond::{json, not_allowed, text};

/// Largest value of a configuration key.
const MAX_VALUE_BYTES: usize = 1 << 20;
/// Longest configuration key.
const MAX_KEY_BYTES: usize = 256;

/// The answer to a request below one of the paths of this room; `None` for other paths.
pub(crate) async fn respond(
    request: Request<Incoming>,
    node: &Node,
) -> Result<Response<Full<Bytes>>, Request<Incoming>> {
    let path = request.uri().path();
    let known =
        path == "/cluster" || path.starts_with("/config/") || path.starts_with("/cluster/nodes/");
    if !known {
        return Err(request);
    }
    let Some(meta) = node.meta().cloned() else {
        return Ok(text(StatusCode::NOT_FOUND, "this node keeps nothing: it has no metadata\n"));
    };
    let get = matches!(*request.method(), Method::GET | Method::HEAD);
    Ok(match path {
        "/cluster" if get => json(StatusCode::OK, &meta.status()),
        "/cluster" => not_allowed("GET, HEAD"),
        path if path.starts_with("/cluster/nodes/") => {
            let number = path["/cluster/nodes/".len()..].parse::<u64>();
            match (request.method(), number) {
                (&Method::DELETE, Ok(number)) => match meta.remove_node(number).await {
                    Ok(()) => text(StatusCode::OK, "removed\n"),
                    Err(error) => text(StatusCode::CONFLICT, format!("{error}\n")),
                },
                (&Method::DELETE, Err(_)) => text(StatusCode::NOT_FOUND, "no such node\n"),
                _ => not_allowed("DELETE"),
            }
        }
        path => {
            let key = path["/config/".len()..].to_owned();
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(plain) {
                return Ok(text(
                    StatusCode::BAD_REQUEST,
                    "a key is 1 to 256 letters, digits, dots, dashes and underscores\n",
                ));
            }
            match *request.method() {
                Method::GET | Method::HEAD => get_config(&meta, &key).await,
                Method::PUT => put_config(&meta, key, request).await,
                Method::DELETE => {
                    let expected = expected(&request);
                    set_config(&meta, key, expected, None).await
                }
                _ => not_allowed("GET, HEAD, PUT, DELETE"),
            }
        }
    })
}

/// Linearizable: what was acknowledged before is seen, on whichever node.
async fn get_config(meta: &Handle, key: &str) -> Response<Full<Bytes>> {
    if let Err(error) = meta.linearize().await {
        return unavailable(error);
    }
    match meta.read(|view| meta::state::config(view, key)) {
        Ok(Some(record)) => with_version(text(StatusCode::OK, record.value), record.version),
        Ok(None) => text(StatusCode::NOT_FOUND, "not set\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

async fn put_config(
    meta: &Handle,
    key: String,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let expected = expected(&request);
    match Limited::new(request.into_body(), MAX_VALUE_BYTES).collect().await {
        Ok(body) => set_config(meta, key, expected, Some(body.to_bytes().to_vec())).await,
        Err(_) => text(StatusCode::PAYLOAD_TOO_LARGE, "the value is too large or was cut off\n"),
    }
}

async fn set_config(
    meta: &Handle,
    key: String,
    expected: Result<Option<u64>, ()>,
    value: Option<Vec<u8>>,
) -> Response<Full<Bytes>> {
    let Ok(expected) = expected else {
        return text(StatusCode::BAD_REQUEST, "If-Match is to be a version in quotes\n");
    };
    let answer = meta.propose(vec![Command::SetConfig { key, expected, value }]).await;
    match answer.map(|answer| answer.replies.into_iter().next()) {
        Ok(Some(Reply::Config { version })) => {
            with_version(text(StatusCode::OK, "done\n"), version)
        }
        Ok(Some(Reply::Refused(refusal))) => {
            let status = match refusal {
                Refusal::Conflict { .. } => StatusCode::PRECONDITION_FAILED,
                Refusal::NotFound => StatusCode::NOT_FOUND,
                _ => StatusCode::BAD_REQUEST,
            };
            let response = text(status, format!("{refusal}\n"));
            match refusal {
                Refusal::Conflict { version } => with_version(response, version),
                _ => response,
            }
        }
        Ok(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "an unexpected answer\n"),
        Err(error) => unavailable(error),
    }
}

/// The version in `If-Match`, as `"7"`; 0 for a key that must not be there.
fn expected(request: &Request<Incoming>) -> Result<Option<u64>, ()> {
    let Some(value) = request.headers().get(IF_MATCH) else { return Ok(None) };
    let value = value.to_str().map_err(|_| ())?;
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    quoted.ok_or(())?.parse().map(Some).map_err(|_| ())
}

fn with_version(mut response: Response<Full<Bytes>>, version: u64) -> Response<Full<Bytes>> {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

fn unavailable(error: ProposeError) -> Response<Full<Bytes>> {
    let status = match error {
        // Whether it was done is not known.
        ProposeError::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ProposeError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ProposeError::NoLeader | ProposeError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    text(status, format!("{error}\n"))
}
