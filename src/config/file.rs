//! The file: syntax, unknown keys, types, each error with its line.

use std::ops::Range;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::settings::Settings;
use super::{ConfigError, keys_of, schema, unknown};

/// Which line each key stands on.
#[derive(Debug, Default)]
pub(super) struct Lines {
    file: String,
    keys: Vec<(String, usize)>,
}

impl Lines {
    /// `FILE:LINE` of a key, or of the nearest section around it.
    pub(super) fn place(&self, path: &str) -> Option<String> {
        let mut path = path;
        loop {
            if let Some((_, line)) = self.keys.iter().find(|(key, _)| key == path) {
                return Some(format!("{}:{line}", self.file));
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

/// Parses `text`, the content of the file `name`. Ranges are not checked yet.
pub(super) fn parse(name: &str, text: &str) -> Result<(Settings, Lines), ConfigError> {
    let place = |at: usize| format!("{name}:{}", line_of(text, at));
    let place_of = |span: Option<Range<usize>>| place(span.map_or(0, |span| span.start));
    let document = DeTable::parse(text)
        .map_err(|error| ConfigError::new(&place_of(error.span()), "", error.message()))?;

    let mut spans = Vec::new();
    walk(document.get_ref(), &Value::Table(schema()), "", &mut spans)
        .map_err(|(at, path, message)| ConfigError::new(&place(at), &path, &message))?;

    let settings = toml::from_str(text).map_err(|error| {
        // The innermost key whose value holds the error is the one to name.
        let at = error.span().unwrap_or_default();
        let path = spans
            .iter()
            .rev() // of two with the same span, the inner one came later
            .filter(|(_, span)| span.start <= at.start && at.end <= span.end)
            .min_by_key(|(_, span)| span.len())
            .map_or("", |(path, _)| path);
        ConfigError::new(&place(at.start), path, error.message())
    })?;
    let keys = spans.into_iter().map(|(path, span)| (path, line_of(text, span.start))).collect();
    Ok((settings, Lines { file: name.into(), keys }))
}

type Fault = (usize, String, String);

/// Refuses keys that the schema lacks; notes where each key and its value stand.
fn walk(
    table: &DeTable<'_>,
    schema: &Value,
    prefix: &str,
    spans: &mut Vec<(String, Range<usize>)>,
) -> Result<(), Fault> {
    // A table where a plain value belongs: the typed pass says so better.
    let Some(known) = keys_of(schema) else { return Ok(()) };
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let Some(inner) = known.get(name) else {
            let what = if prefix.is_empty() { "section" } else { "key" };
            let message = unknown(what, name, known.keys());
            return Err((key.span().start, path, message));
        };
        // The span of a `[section]` is its header, which begins before the key in it.
        let (key, whole) = (key.span(), value.span());
        spans.push((path.clone(), key.start.min(whole.start)..key.end.max(whole.end)));
        match value.get_ref() {
            DeValue::Table(table) => walk(table, inner, &path, spans)?,
            DeValue::Array(array) => {
                for (index, element) in array.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    spans.push((path.clone(), element.span()));
                    if let DeValue::Table(table) = element.get_ref() {
                        walk(table, inner, &path, spans)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse("g.toml", text).unwrap_err().to_string()
    }

    fn checked(text: &str) -> String {
        let (settings, lines) = parse("g.toml", text).unwrap();
        let invalid = settings.check().unwrap_err();
        format!("{}: {}", lines.place(&invalid.path).unwrap(), invalid.path)
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest() {
        assert_eq!(
            error("[log]\nfilter = \"info\"\n\n[limits]\nmax_conections = 5\n"),
            "g.toml:5: limits.max_conections: \
             unknown key 'max_conections': did you mean 'max_connections'?"
        );
        assert_eq!(
            error("[runtme]\nshards = 1\n"),
            "g.toml:1: runtme: unknown section 'runtme': did you mean 'runtime'?"
        );
        assert_eq!(
            error("[[listeners]]\naddress = \"127.0.0.1:1\"\n[[listeners]]\nadress = \"x\"\n"),
            "g.toml:4: listeners[1].adress: unknown key 'adress': did you mean 'address'?"
        );
        assert_eq!(
            error("[log]\nxyz = 1\n"),
            "g.toml:2: log.xyz: unknown key 'xyz': known here are filter, format"
        );
    }

    #[test]
    fn wrong_types_name_line_and_key() {
        let message = error("[runtime]\nring_entries = 64\nshards = \"two\"\n");
        assert!(message.starts_with("g.toml:3: runtime.shards: invalid type: string"), "{message}");
        let message = error("[runtime]\nbackend = \"tokyo\"\n");
        assert!(message.starts_with("g.toml:2: runtime.backend: unknown variant"), "{message}");
        let message = error("[limits]\nmax_inflight = 70000\n");
        assert!(message.starts_with("g.toml:2: limits.max_inflight: "), "{message}");
        let message = error("[runtime]\npin = \"all\"\n");
        assert!(message.starts_with("g.toml:2: runtime.pin: invalid value"), "{message}");
        let message = error("[[listeners]]\naddress = \"127.0.0.1\"\n");
        assert!(message.starts_with("g.toml:2: listeners[0].address: "), "{message}");
        let message = error("\n[[listeners]]\nbacklog = 3\n");
        assert!(message.starts_with("g.toml:2: listeners[0]: missing field"), "{message}");
        let message = error("runtime = 3\n");
        assert!(message.starts_with("g.toml:1: runtime: invalid type"), "{message}");
        let message = error("[log.filter]\nx = 1\n");
        assert!(message.starts_with("g.toml:1: log.filter: invalid type"), "{message}");
    }

    #[test]
    fn syntax_errors_name_the_line() {
        let message = error("[log]\nfilter = \n");
        assert!(message.starts_with("g.toml:2: "), "{message}");
        assert_eq!(message.lines().count(), 1);
    }

    #[test]
    fn out_of_range_names_line_and_key() {
        assert_eq!(checked("[runtime]\n\nring_entries = 100\n"), "g.toml:3: runtime.ring_entries");
        assert_eq!(checked("[limits]\nreceive_maximum = 0\n"), "g.toml:2: limits.receive_maximum");
        assert_eq!(checked("[runtime]\nshards = 65\n"), "g.toml:2: runtime.shards");
        assert_eq!(checked("[log]\nfilter = \"a=b=c\"\n"), "g.toml:2: log.filter");
        assert_eq!(checked("listeners = []\n"), "g.toml:1: listeners");
        assert_eq!(
            checked("[[listeners]]\naddress = \"127.0.0.1:1\"\nbacklog = 0\n"),
            "g.toml:3: listeners[0].backlog"
        );
        assert_eq!(
            checked("[runtime]\nrequire_io_uring = true\nforce_fallback = true\n"),
            "g.toml:3: runtime.force_fallback"
        );
    }
}
