//! `gearbox passwd`: sets or removes one user of a users file.

use std::io::{self, IsTerminal, Read};

use mqtt::access::{Credentials, CredentialsError, SALT_BYTES, edit_users};

use crate::cli::PasswdArgs;
use crate::users_file;

/// Reads the password from the terminal, or the first line of standard input, and changes the file.
/// Returns what to say.
///
/// # Errors
/// One line; the file is as it was.
pub fn passwd(args: &PasswdArgs) -> Result<String, String> {
    let (user, file) = (&args.user, args.file.display());
    if args.delete {
        users_file::change(&args.file, |text| {
            match edit_users(text, user, None).map_err(problem)? {
                (text, true) => Ok((text, ())),
                (_, false) => Err(format!("no user '{user}' in it")),
            }
        })?;
        return Ok(format!("{file}: user '{user}' removed\n"));
    }
    let password = password()?;
    let mut salt = [0; SALT_BYTES];
    rt_abstract::os::fill_random(&mut salt);
    let credentials = Credentials::derive(&password, &salt, args.iterations)
        .map_err(|error: CredentialsError| error.to_string())?;
    let found = users_file::change(&args.file, |text| {
        edit_users(text, user, Some(&credentials)).map_err(problem)
    })?;
    let done = if found { "changed" } else { "added" };
    Ok(format!("{file}: user '{user}' {done}\n"))
}

fn problem(error: mqtt::access::UsersError) -> String {
    match error.line {
        0 => error.problem, // about the name that was given
        _ => error.to_string(),
    }
}

fn password() -> Result<String, String> {
    let cannot = |error: io::Error| format!("cannot read the password: {error}");
    if io::stdin().is_terminal() {
        let password = rpassword::prompt_password("Password: ").map_err(cannot)?;
        if rpassword::prompt_password("Again: ").map_err(cannot)? != password {
            return Err("the two passwords differ".into());
        }
        return Ok(password);
    }
    let mut text = String::new();
    io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// What a CONNECT can carry as a password.
const MAX_INPUT_BYTES: u64 = 65_535;
