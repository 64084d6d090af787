//! From an address to a connection on which both sides have said who they are.

use rt_abstract::{Address, Runtime, os};

use super::Settings;
use super::connection::{LinkError, Parts, at_most, within, write_hello};
use super::hello::{Answer, Hello, HelloError};

/// Connects to `address` and says hello.
pub(super) async fn connect<R: Runtime>(
    settings: &Settings,
    address: &str,
    hello: &Hello,
) -> Result<Parts<R>, LinkError> {
    let mut last = LinkError::Protocol(format!("'{address}' names no address"));
    for address in resolve::<R>(address).await? {
        let connected = at_most::<R, _>(settings.connect_timeout, R::connect(&address)).await;
        let stream = match connected {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                last = error.into();
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
        match within::<R, _>(settings.connect_timeout, &closer, greeting).await {
            Ok(()) => return Ok(parts),
            Err(error) => last = error,
        }
    }
    Err(last)
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
