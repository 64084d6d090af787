//! The users file on disk: reading it, and changing it so that a reader sees the old or the new
//! one and never something between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use mqtt::access::Users;

/// Reads a users file.
///
/// # Errors
/// One line that names the file, and the line in it if that is what is wrong.
pub fn load(path: &Path) -> Result<Users, String> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read the users file {shown}: {error}"))?;
    Users::parse(&text).map_err(|error| format!("users file {shown}: {error}"))
}

/// Replaces the content of `path`, which may be missing, by what `change` makes of it: readable by
/// its owner alone, all or nothing, one process at a time.
///
/// # Errors
/// One line; the file is as it was.
pub fn change<T>(
    path: &Path,
    change: impl FnOnce(&str) -> Result<(String, T), String>,
) -> Result<T, String> {
    let shown = path.display();
    let cannot = |what: &str, error: io::Error| format!("cannot {what} {shown}: {error}");
    // A link stays one: what it points at is replaced.
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(cannot("find", error)),
    };
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    };
    // The lock is on the directory, because the file itself is another one afterwards.
    let dir = File::open(&dir).and_then(|dir| dir.lock().map(|()| dir));
    let dir = dir.map_err(|error| cannot("lock the directory of", error))?;
    let (text, owner) = match fs::read_to_string(&path) {
        Ok(text) => {
            let owner = fs::metadata(&path).map_err(|error| cannot("read", error))?;
            (text, Some((owner.uid(), owner.gid())))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (String::new(), None),
        Err(error) => return Err(cannot("read", error)),
    };
    let (text, result) = change(&text).map_err(|problem| format!("{shown}: {problem}"))?;
    let mut temporary = path.clone().into_os_string();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = write(&temporary, &text, owner).and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(cannot("write", error));
    }
    dir.sync_all().map_err(|error| cannot("make durable", error))?;
    Ok(result)
}

/// `owner` is the user and group of the file that is about to be replaced: whoever could read it
/// still can, also when somebody else made the change.
fn write(path: &Path, text: &str, owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if let Some((uid, gid)) = owner {
        let now = file.metadata()?;
        if (now.uid(), now.gid()) != (uid, gid) {
            fchown(&file, Some(uid), Some(gid))?;
        }
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replaced_whole_and_private() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("users");
        let seen = change(&path, |old| Ok(("# one\n".into(), old.len()))).unwrap();
        assert_eq!(seen, 0);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("users", &link).unwrap();
        assert_eq!(change(&link, |old| Ok(("# two\n".into(), old.len()))).unwrap(), 6);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "# two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = change::<()>(&path, |_| Err("no".into())).unwrap_err();
        assert!(error.ends_with("/users: no"), "{error}");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2, "nothing is left behind");
        assert!(load(&path).unwrap().is_empty());
    }

    #[test]
    fn errors_name_file_and_line() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("users");
        let error = load(&path).unwrap_err();
        assert!(error.starts_with("cannot read the users file ") && error.contains("users: "));
        fs::write(&path, "\nann:secret\n").unwrap();
        let error = load(&path).unwrap_err();
        assert!(error.contains("users: line 2: the credentials of 'ann'"), "{error}");
        let error = change(&path.join("x"), |_| Ok((String::new(), ()))).unwrap_err();
        assert!(error.starts_with("cannot "), "{error}");
    }
}
