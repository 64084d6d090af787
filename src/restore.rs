//! `gearbox restore`: a new data directory from a backup, known to be sound before it can be used.

use std::path::Path;

use broker_core::backup::{self, Manifest};
use rt_abstract::{RunOptions, Runtime};

use crate::backend::Visit;
use crate::cli::RestoreArgs;
use crate::{data_dir, repair};

/// Copies and checks, and returns what is to be printed.
///
/// # Errors
/// One line for the operator. What was copied by then is marked, and no broker starts on it.
pub fn restore(args: &RestoreArgs) -> Result<String, String> {
    let (from, to) = (&args.from, &args.data_dir);
    if !from.join(backup::MANIFEST).exists() {
        let from = from.display();
        return Err(format!("{from} is no complete backup: it has no MANIFEST"));
    }
    let _locked = data_dir::begin_restore(to)?;
    let manifest = repair::on_a_backend(Copy { from, to })?;
    let (report, sound) = repair::inspect(to)?;
    if !sound || report.node != Some(manifest.node) {
        return Err(format!("what was restored is not sound:\n{}", report.text));
    }
    data_dir::finish_restore(to)?;
    let counts = manifest.counts;
    Ok(format!(
        "{}restored {} bytes in {} files: node {} as of {} s since 1970\n\
         the node of the backup must not run any more; see the README before it meets a cluster\n",
        report.text,
        counts.bytes,
        counts.files,
        manifest.node,
        manifest.began_ms / 1000
    ))
}

struct Copy<'a> {
    from: &'a Path,
    to: &'a Path,
}

impl Visit for Copy<'_> {
    type Output = Result<Manifest, String>;

    fn visit<R: Runtime>(self) -> Self::Output {
        let Self { from, to } = self;
        R::block_on(&RunOptions::default(), backup::restore::<R>(from, to))
            .map_err(|error| format!("cannot run on {}: {error}", R::NAME))?
            .map_err(|error| format!("not restored: {error}"))
    }
}
