//! `GEARBOX_SECTION__KEY=value`, and `GEARBOX_LISTENERS=ADDR,ADDR` for the list of listeners.

use toml::{Table, Value};

use super::settings::Settings;
use super::{ConfigError, keys_of, schema, unknown};

/// Applies the overrides and returns which key each variable set, as (key's path, variable).
///
/// Variables with `GEARBOX_` but without a double underscore are not overrides and are ignored.
pub(super) fn apply(
    settings: &mut Settings,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut overrides: Vec<_> = environment
        .into_iter()
        .filter(|(name, _)| name.starts_with(PREFIX))
        .filter(|(name, _)| name == LISTENERS || name.contains("__"))
        .collect();
    overrides.sort(); // so that the first error does not depend on the environment's order
    let mut set = Vec::new();
    for (name, text) in overrides {
        let path = apply_one(settings, &name, &text).map_err(|(path, message)| {
            ConfigError::new(&format!("environment {name}"), &path, &message)
        })?;
        set.push((path, name));
    }
    Ok(set)
}

const PREFIX: &str = "GEARBOX_";
const LISTENERS: &str = "GEARBOX_LISTENERS";

fn apply_one(settings: &mut Settings, name: &str, text: &str) -> Result<String, (String, String)> {
    let schema = schema();
    let mut table = Table::try_from(&*settings).map_err(|error| fault("", error))?;
    let path = if name == LISTENERS {
        let listener = |address: &str| {
            Value::Table(Table::from_iter([("address".to_owned(), address.trim().into())]))
        };
        table.insert("listeners".into(), Value::Array(text.split(',').map(listener).collect()));
        "listeners".to_owned()
    } else {
        let lower = name[PREFIX.len()..].to_lowercase();
        let (section, key) = lower.split_once("__").unwrap_or((&lower, ""));
        let sections = || schema.iter().filter(|(_, value)| value.is_table());
        let Some((_, known)) = sections().find(|(name, _)| *name == section) else {
            let message = unknown("section", section, sections().map(|(name, _)| name));
            return Err((section.into(), message));
        };
        let path = format!("{section}.{key}");
        let known = keys_of(known).cloned().unwrap_or_default();
        let Some(default) = known.get(key) else {
            return Err((path, unknown("key", key, known.keys())));
        };
        if let Some(Value::Table(section)) = table.get_mut(section) {
            section.insert(key.to_owned(), value_like(default, text));
        }
        path
    };
    *settings = table.try_into().map_err(|error| fault(&path, error))?;
    Ok(path)
}

/// Text is text where the default is text; a list, a number or a flag is read as TOML.
fn value_like(default: &Value, text: &str) -> Value {
    let plain = Value::String(text.to_owned());
    if default.is_str() && !text.starts_with('[') {
        return plain;
    }
    match format!("value = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").unwrap_or(plain),
        _ => plain,
    }
}

fn fault(path: &str, error: impl std::fmt::Display) -> (String, String) {
    let text = error.to_string();
    // The deserializer adds "in `key`" lines; the path says that already.
    (path.to_owned(), text.lines().next().unwrap_or_default().to_owned())
}
