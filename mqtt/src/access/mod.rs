//! Who a client is: passwords, SCRAM-SHA-256, and the exchange that MQTT 5 carries it in.
//!
//! Plain functions and state machines: users, nonces and packets go in, a decision comes out.
//! [`demand`] says what a CONNECT has to prove; [`PasswordCheck`] proves a password, which takes
//! milliseconds and is meant for a thread of its own; [`Enhanced`] walks through an exchange, which
//! takes microseconds. Both judge by the same [`Credentials`], which hold no password.

mod credentials;
mod crypto;
mod demand;
mod enhanced;
mod nonce;
mod password;
mod prepare;
mod scram;
#[cfg(test)]
mod test_client;
mod users;

pub use credentials::{
    Credentials, CredentialsError, DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, SALT_BYTES,
};
pub use demand::{Demand, Policy, demand};
pub use enhanced::{Enhanced, SCRAM_SHA_256, Step};
pub use nonce::NonceKey;
pub use password::PasswordCheck;
pub use prepare::{NotPreparable, prepare};
pub use scram::{MAX_MESSAGE_BYTES, Scram, ScramError};
pub use users::{Lookup, Users, UsersError, edit_users};
