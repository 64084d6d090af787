//! From an address to a connection on which both sides have said who they are.

use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};
use rt_abstract::{Address, Closer, Runtime, Shutdown, os};

use super::Settings;
use super::connection::{LinkError, Parts, at_most, within, write_hello};
use super::hello::{Answer, Hello, HelloError};

/// Connects to `address` and says hello, unless `stop` comes first.
pub(super) async fn connect<R: Runtime>(
    settings: &Settings,
    address: &str,
    hello: &Hello,
    stop: &Shutdown,
) -> Result<Parts<R>, LinkError> {
    let mut last = LinkError::Protocol(format!("'{address}' names no address"));
    for address in resolve::<R>(address).await? {
        let connecting = async {
            let (connecting, stopped) = (pin!(R::connect(&address)), pin!(stop.wait()));
            match select(connecting, stopped).await {
                Either::Left((connected, _)) => Ok(connected?),
                Either::Right(_) => Err(LinkError::Stopped),
            }
        };
        let stream = match at_most::<R, _>(settings.connect_timeout, connecting).await {
            Some(Ok(stream)) => stream,
            Some(Err(LinkError::Stopped)) => return Err(LinkError::Stopped),
            Some(Err(error)) => {
                last = error;
                continue;
            }
            None => {
                last = LinkError::Silent(settings.connect_timeout);
                continue;
            }
        };
        let mut parts = Parts::<R>::new(stream, settings.max_frame_bytes);
        let closer = parts.closer.clone();
        let greeting = async {
            write_hello(&mut parts.writer, hello).await?;
            let answer: Answer = parts.reader.hello().await.map_err(explain)?;
            Ok(answer.check(hello.to)?)
        };
        let greeting = unless_stopped(stop, &closer, greeting);
        match within::<R, _>(settings.connect_timeout, &closer, greeting).await {
            Ok(()) => return Ok(parts),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Drives `operation` to its end, which `stop` brings by killing the connection.
async fn unless_stopped<T>(
    stop: &Shutdown,
    closer: &impl Closer,
    operation: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let stopped = pin!(stop.wait());
    match select(pin!(operation), stopped).await {
        Either::Left((result, _)) => result,
        Either::Right(((), operation)) => {
            closer.kill();
            operation.await.and(Err(LinkError::Stopped))
        }
    }
}

/// A node that ends the connection instead of answering is most likely none of ours.
fn explain(error: LinkError) -> LinkError {
    match error {
        LinkError::Ended => HelloError::Foreign.into(),
        error => error,
    }
}

async fn resolve<R: Runtime>(address: &str) -> Result<Vec<Address>, LinkError> {
    if let Ok(address) = address.parse::<Address>() {
        return Ok(vec![address]);
    }
    let name = address.to_owned();
    let resolved = R::spawn_blocking(move || os::resolve(&name));
    let addresses = resolved.await.map_err(|panic| LinkError::Protocol(panic.to_string()))??;
    Ok(addresses.into_iter().map(Address::Tcp).collect())
}
