//! Values that the file writes as text: addresses and CPUs.

use std::fmt;
use std::str::FromStr;

use rt_abstract::{Address, Pinning};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// An [`Address`] as a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addr(pub Address);

/// An admin address, or `None` for "off".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddr(pub Option<Address>);

/// A [`Pinning`]: "none", "auto" or a list of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin(pub Pinning);

impl FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self(None)),
            address => address
                .parse()
                .map(|address| Self(Some(address)))
                .map_err(|error: String| format!("{error}, nor off")),
        }
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

impl Serialize for Addr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Addr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl Serialize for AdminAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AdminAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Pinning::None => serializer.serialize_str("none"),
            Pinning::Auto => serializer.serialize_str("auto"),
            Pinning::Cpus(cpus) => cpus.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Pin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PinVisitor;

        impl<'de> Visitor<'de> for PinVisitor {
            type Value = Pin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"auto\" or a list of CPU numbers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pin, E> {
                match text {
                    "none" => Ok(Pin(Pinning::None)),
                    "auto" => Ok(Pin(Pinning::Auto)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pin, A::Error> {
                let mut cpus = Vec::new();
                while let Some(cpu) = seq.next_element()? {
                    cpus.push(cpu);
                }
                if cpus.is_empty() {
                    return Err(de::Error::invalid_length(0, &self));
                }
                Ok(Pin(Pinning::Cpus(cpus)))
            }
        }

        deserializer.deserialize_any(PinVisitor)
    }
}
