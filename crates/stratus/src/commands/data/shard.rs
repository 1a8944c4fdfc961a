//! `stratus data shard`: a data set is packed into tar shards.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stratus_data::shards::{self, PackOptions, PackProgress, Resized, Smaller};
use stratus_data::{DataError, OpenOptions};

use super::data_failure;
use crate::errors::Result;
use crate::output::{Output, bytes, pairs};

/// Arguments of `stratus data shard`.
#[derive(Args, Debug)]
pub struct ShardArguments {
    /// Where the data set is: a folder of images, or a tar archive of one
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where the shards go to: a folder, or the address of a store
    #[arg(value_name = "DST", required_unless_present = "index_only")]
    target: Option<PathBuf>,
    /// What the data set is, as in data.name
    #[arg(long, value_name = "NAME", default_value = "folder")]
    name: String,
    /// Most MiB of a shard
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    shard_mib: u64,
    /// Decides the order of the images in the shards
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the data set's own order; a shard may then hold a single class
    #[arg(long, conflicts_with = "seed")]
    no_shuffle: bool,
    /// Make larger images smaller: to this many pixels of the shorter side, as JPEG files
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u16).range(1..))]
    resize: Option<u16>,
    /// The quality of the JPEG files of smaller images
    #[arg(long, value_name = "Q", requires = "resize", default_value_t = 92)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=100))]
    quality: u8,
    /// Replace shards, or with --index-only an index, that are there
    #[arg(long)]
    overwrite: bool,
    /// Pack nothing: SRC is a folder of shards that have no index, which is written
    #[arg(long, conflicts_with_all = ["target", "name", "shard_mib", "seed", "no_shuffle", "resize"])]
    index_only: bool,
}

#[derive(Serialize)]
struct Packed {
    split: String,
    shards: usize,
    images: usize,
    left_out: usize,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resized: Option<Resized>,
}

/// Packs a data set, or writes the index of shards that have none.
pub(super) fn shard(arguments: &ShardArguments, options: &OpenOptions, output: &Output) -> Result {
    let packed = match &arguments.target {
        Some(target) => pack(arguments, target, options, output).map_err(data_failure)?,
        None => index(&arguments.source, arguments.overwrite).map_err(data_failure)?,
    };
    let left_out: usize = packed.iter().map(|part| part.left_out).sum();
    if left_out > 0 {
        output.warning(&format!("damaged images are left out ({left_out}); `stratus data check` lists them"));
    }
    output.result(&packed, || {
        let line = |part: &Packed| {
            let Packed { shards, images, .. } = part;
            let shards = if *shards == 1 { "1 shard".to_owned() } else { format!("{shards} shards") };
            let smaller = part.resized.as_ref().map_or(String::new(), smaller);
            (part.split.clone(), format!("{images} images in {shards}, {}{smaller}", bytes(part.bytes)))
        };
        pairs(&packed.iter().map(line).collect::<Vec<_>>())
    })
}

/// How much smaller images became.
fn smaller(resized: &Resized) -> String {
    let Resized { images, bytes_before, bytes: now, .. } = resized;
    let share = 100.0 * *now as f64 / (*bytes_before).max(1) as f64;
    format!(
        "; {images} made smaller: {} of image files, {share:.0} % of {}",
        bytes(*now),
        bytes(*bytes_before)
    )
}

fn pack(
    arguments: &ShardArguments,
    target: &Path,
    options: &OpenOptions,
    output: &Output,
) -> std::result::Result<Vec<Packed>, DataError> {
    let parts = shards::open_parts(&arguments.name, &arguments.source, options)?;
    let how = PackOptions {
        shard_bytes: arguments.shard_mib << 20,
        shuffle: (!arguments.no_shuffle).then_some(arguments.seed),
        smaller: arguments.resize.map(|side| Smaller { side: usize::from(side), quality: arguments.quality }),
        overwrite: arguments.overwrite,
        skip_damaged: options.skip_damaged,
        staging: options.cache.clone().unwrap_or_else(std::env::temp_dir),
    };
    let mut said = Instant::now();
    let mut progress = |PackProgress { shard, samples, of }: PackProgress<'_>| {
        if said.elapsed() > Duration::from_secs(2) {
            said = Instant::now();
            output.message(&format!("{shard}: {samples} of {of} images"));
        }
    };
    let packed = shards::pack(&parts, target, &how, &mut progress)?;
    let packed = packed.into_iter().map(|part| Packed {
        split: part.split.to_string(),
        shards: part.shards,
        images: part.samples,
        left_out: part.left_out,
        bytes: part.bytes,
        resized: part.resized,
    });
    Ok(packed.collect())
}

fn index(folder: &Path, overwrite: bool) -> std::result::Result<Vec<Packed>, DataError> {
    let path = folder.join(shards::INDEX_FILE);
    if path.exists() && !overwrite {
        return Err(DataError::Exists { path });
    }
    let index = shards::index_folder(folder)?;
    let packed = index.splits.iter().map(|(split, shards)| Packed {
        split: split.clone(),
        shards: shards.len(),
        images: shards.iter().map(shards::Shard::samples).sum(),
        left_out: 0,
        bytes: shards.iter().map(|shard| shard.bytes).sum(),
        resized: None,
    });
    Ok(packed.collect())
}
