//! The command line of `tinderbox backup`.

use std::path::PathBuf;

use super::keys::PlaceArgs;

#[derive(Clone, clap::Args)]
pub struct BackupArgs {
    /// Where the copy is put: a directory that does not exist, or an empty one
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,

    #[command(flatten)]
    pub place: PlaceArgs,
}
