//! Which answer belongs to which request.

use broker_core::Node;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use rt_abstract::os;
use serde::Serialize;

use crate::{ServerInfo, metrics, steps};

/// The answer to `method` on `path`. hyper leaves the body out for HEAD.
pub(crate) fn respond(
    method: &Method,
    path: &str,
    node: &Node,
    info: &ServerInfo,
) -> Response<Full<Bytes>> {
    let known = matches!(path, "/health" | "/metrics" | "/steps");
    if known && !matches!(*method, Method::GET | Method::HEAD) {
        return not_allowed("GET, HEAD");
    }
    match path {
        "/health" if node.shutdown().is_triggered() => {
            text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
        }
        "/health" if !node.is_serving() => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        "/health" => text(StatusCode::OK, "ok\n"),
        "/metrics" => {
            let usage = os::process_usage();
            let mut body = metrics::render(&node.stats(), info, usage, node.messages());
            steps::render(&mut body, node);
            let mut response = text(StatusCode::OK, body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::TYPE));
            response
        }
        "/steps" => json(StatusCode::OK, &steps::report(node)),
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; there are /health, /metrics, /cluster, /steps, /config/KEY and /backup\n",
        ),
    }
}

pub(crate) fn not_allowed(allowed: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(mut body) => {
            body.push(b'\n');
            let mut response = text(status, body);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker_core::Config;

    #[test]
    fn answers() {
        let mut config = Config::default();
        config.listeners[0].address = "127.0.0.1:0".parse().unwrap();
        let node = Node::bind::<rt_tokio::Tokio>(config, 2, None).unwrap();
        let info = metrics::tests::info();
        let status = |method, path| respond(&method, path, &node, &info).status().as_u16();
        assert_eq!(status(Method::GET, "/health"), 200);
        assert_eq!(status(Method::HEAD, "/health"), 200);
        assert_eq!(status(Method::GET, "/metrics"), 200);
        assert_eq!(status(Method::GET, "/"), 404);
        assert_eq!(status(Method::POST, "/"), 404);
        assert_eq!(status(Method::POST, "/metrics"), 405);
        assert_eq!(status(Method::GET, "/steps"), 200, "also without metadata");
        assert_eq!(status(Method::POST, "/steps"), 405);
        node.shutdown().trigger();
        assert_eq!(status(Method::GET, "/health"), 503);
        assert_eq!(status(Method::GET, "/metrics"), 200);
    }
}
