//! From file, environment and flags to checked settings, with errors that name their place.
//!
//! Flags override the environment, which overrides the file, which overrides the defaults.

mod env;
mod file;
mod limits;
mod sections;
mod settings;
mod values;

use std::fmt;
use std::path::Path;

use toml::{Table, Value};

pub use sections::{ApplyName, BackendChoice, Listener, LogFormat, SchedulerName, TaskPlace};
pub use settings::Settings;
pub use values::AdminAddr;

/// What is wrong with the configuration, where it stands and which key it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// `gearbox.toml:12`, `environment GEARBOX_LOG__FILTER`, or nothing.
    place: String,
    /// The key, like `limits.max_inflight`; empty for syntax errors.
    path: String,
    message: String,
}

/// Reads the file, if any, then applies `environment` (all variables of the process; others than
/// `GEARBOX_...` are ignored), then checks ranges.
///
/// # Errors
/// The first thing that is wrong.
pub fn load(
    path: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Settings, ConfigError> {
    let (mut settings, lines) = match path {
        None => (Settings::default(), file::Lines::default()),
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError::new(&name, "", &format!("cannot read: {error}")))?;
            file::parse(&name, &text)?
        }
    };
    let from_env = env::apply(&mut settings, environment)?;
    settings.check().map_err(|invalid| {
        let place = from_env
            .iter()
            .find(|(path, _)| *path == invalid.path)
            .map(|(_, name)| format!("environment {name}"))
            .or_else(|| lines.place(&invalid.path))
            .unwrap_or_default();
        ConfigError::new(&place, &invalid.path, &invalid.message)
    })?;
    Ok(settings)
}

/// The settings as TOML.
pub fn show(settings: &Settings) -> String {
    // Settings hold nothing that TOML cannot say; the tests serialize every kind of value.
    toml::to_string(settings).unwrap_or_else(|error| format!("# cannot be shown: {error}\n"))
}

impl ConfigError {
    fn new(place: &str, path: &str, message: &str) -> Self {
        // One line each: a parser's message may have several.
        let message = message.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        Self { place: place.into(), path: path.into(), message }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.place, &self.path] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// All known keys with their defaults.
fn schema() -> Table {
    Table::try_from(Settings::default()).unwrap_or_default()
}

/// The known keys of one table: an array of tables counts as its first element.
fn keys_of(schema: &Value) -> Option<&Table> {
    match schema {
        Value::Table(table) => Some(table),
        Value::Array(array) => array.first().and_then(Value::as_table),
        _ => None,
    }
}

/// The message for a name that is not among `known`.
fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> String {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let nearest = known
        .iter()
        .map(|key| (strsim::damerau_levenshtein(&name.to_lowercase(), key), key))
        .min()
        .filter(|(distance, key)| *distance <= (key.len() / 3).max(1));
    match nearest {
        Some((_, key)) => format!("unknown {what} '{name}': did you mean '{key}'?"),
        None => format!("unknown {what} '{name}': known here are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_env(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let pairs = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        load(None, pairs).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_set_is_the_defaults() {
        assert_eq!(from_env(&[("HOME", "/"), ("GEARBOX_BIN_X", "1")]), Ok(Settings::default()));
        let broker = Settings::default().broker();
        assert_eq!(broker.limits, broker_core::config::Limits::default());
        assert_eq!(broker.listeners, broker_core::Config::default().listeners);
        assert!((1..=broker_core::MAX_SHARDS).contains(&Settings::default().shard_count()));
    }

    #[test]
    fn what_is_shown_can_be_read() {
        let mut settings = Settings::default();
        settings.runtime.pin = values::Pin(rt_abstract::Pinning::Cpus(vec![0, 3]));
        settings.admin.address = AdminAddr(None);
        settings.listeners.0.push(Listener::at("unix:/run/x.sock".parse().unwrap()));
        settings
            .durability
            .topics
            .push(sections::TopicLevel { filter: "x/#".into(), level: sections::LevelName::None });
        assert_eq!(file::parse("x", &show(&settings)).unwrap().0, settings);
    }

    #[test]
    fn the_example_is_complete_and_says_the_defaults() {
        let text = include_str!("../../gearbox.example.toml");
        let (settings, _) = file::parse("gearbox.example.toml", text).unwrap();
        assert_eq!(settings, Settings::default());
        let example: Table = text.parse().unwrap();
        for (section, keys) in schema() {
            for key in keys_of(&keys).unwrap().keys() {
                let named = example.get(&section).and_then(keys_of).and_then(|keys| keys.get(key));
                assert!(named.is_some(), "the example lacks {section}.{key}");
            }
        }
    }

    #[test]
    fn environment_overrides() {
        let settings = from_env(&[
            ("GEARBOX_RUNTIME__SHARDS", "3"),
            ("GEARBOX_RUNTIME__PIN", "[1, 0]"),
            ("GEARBOX_DATA__EPHEMERAL", "true"),
            ("GEARBOX_DATA__DIR", "/srv/x y"),
            ("GEARBOX_LIMITS__QUEUE_FULL", "drop-old"),
            ("GEARBOX_LISTENERS", "127.0.0.1:1, unix:/run/x"),
        ])
        .unwrap();
        assert_eq!(settings.runtime.shards, 3);
        assert_eq!(settings.runtime.pin.0, rt_abstract::Pinning::Cpus(vec![1, 0]));
        assert!(settings.data.ephemeral);
        assert_eq!(settings.data.dir, Path::new("/srv/x y"));
        assert_eq!(settings.limits.queue_full, limits::QueueFullName::DropOld);
        assert_eq!(settings.listeners.0.len(), 2);
    }

    #[test]
    fn environment_errors_name_the_variable() {
        let error = |name, value| from_env(&[(name, value)]).unwrap_err();
        assert_eq!(
            error("GEARBOX_LIMITS__MAX_INFLIGTH", "3"),
            "environment GEARBOX_LIMITS__MAX_INFLIGTH: limits.max_infligth: \
             unknown key 'max_infligth': did you mean 'max_inflight'?"
        );
        assert_eq!(
            error("GEARBOX_LIMIT__MAX_INFLIGHT", "3"),
            "environment GEARBOX_LIMIT__MAX_INFLIGHT: limit: \
             unknown section 'limit': did you mean 'limits'?"
        );
        assert_eq!(
            error("GEARBOX_LIMITS__MAX_INFLIGHT", "0"),
            "environment GEARBOX_LIMITS__MAX_INFLIGHT: limits.max_inflight: \
             must be from 1 to 65535"
        );
        let wrong = error("GEARBOX_RUNTIME__SHARDS", "many");
        assert!(wrong.contains("runtime.shards: "), "{wrong}");
        assert_eq!(
            error("GEARBOX_AUTH__ALLOW_ANONYMOUS", "false"),
            "environment GEARBOX_AUTH__ALLOW_ANONYMOUS: auth.allow_anonymous: \
             false needs auth.users_file"
        );
        let wrong = error("GEARBOX_LISTENERS", "127.0.0.1");
        assert!(wrong.contains("neither an IP address with a port"), "{wrong}");
        let wrong = error("GEARBOX_DATA__DIR__X", "1");
        assert!(wrong.contains("unknown key 'dir__x'"), "{wrong}");
    }

    #[test]
    fn a_missing_file_is_said() {
        let error = load(Some(Path::new("/nowhere/g.toml")), []).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/g.toml: cannot read: "), "{error}");
    }
}
