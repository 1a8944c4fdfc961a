//! `stratus data shard`: packs a data set into tar shards.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stratus_data::shards::{self, PackOptions, PackProgress, PackResize, PackResizeReport};
use stratus_data::{DataError, OpenOptions};

use super::parts::print_warnings;
use super::to_failure;
use crate::errors::Result;
use crate::output::{Output, key_value_list};
use stratus_base::text::bytes;

/// Arguments of `stratus data shard`.
#[derive(Args, Debug)]
pub struct ShardArguments {
    /// Data set: a folder of images, or a tar archive of one
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Destination of the shards: a folder, or the address of a remote store
    #[arg(value_name = "DST", required_unless_present = "index_only")]
    target: Option<PathBuf>,
    /// Format of the data set, as in data.name
    #[arg(long, value_name = "NAME", default_value = "folder")]
    name: String,
    /// Maximum shard size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    shard_mib: u64,
    /// Seed for shuffling the images
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not shuffle; a shard may then contain a single class
    #[arg(long, conflicts_with = "seed")]
    no_shuffle: bool,
    /// Downscale images whose shorter side exceeds this number of pixels, and store them as JPEG
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u16).range(1..))]
    resize: Option<u16>,
    /// JPEG quality of downscaled images
    #[arg(long, value_name = "Q", requires = "resize", default_value_t = 92)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=100))]
    quality: u8,
    /// Replace existing shards, or with --index-only the existing index
    #[arg(long)]
    overwrite: bool,
    /// Only write an index of the existing shards in SRC
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
    resized: Option<PackResizeReport>,
}

/// Packs a data set, or writes the index of existing shards.
pub(super) fn shard(arguments: &ShardArguments, options: &OpenOptions, output: &Output) -> Result {
    let packed = match &arguments.target {
        Some(target) => pack(arguments, target, options, output).map_err(to_failure)?,
        None => index(&arguments.source, arguments.overwrite).map_err(to_failure)?,
    };
    let skipped: usize = packed.iter().map(|part| part.left_out).sum();
    if skipped > 0 {
        output.warning(&format!("skipped {skipped} damaged images; `stratus data check` lists them"));
    }
    output.print_wrapped(&packed, || {
        let line = |part: &Packed| {
            let Packed { shards, images, .. } = part;
            let shards = if *shards == 1 { "1 shard".to_owned() } else { format!("{shards} shards") };
            let downscaling = part.resized.as_ref().map_or(String::new(), describe_downscaling);
            (part.split.clone(), format!("{images} images in {shards}, {}{downscaling}", bytes(part.bytes)))
        };
        key_value_list(&packed.iter().map(line).collect::<Vec<_>>())
    })
}

/// Describes the effect of downscaling.
fn describe_downscaling(resized: &PackResizeReport) -> String {
    let PackResizeReport { images, bytes_before, bytes: bytes_after, .. } = resized;
    let share = 100.0 * *bytes_after as f64 / (*bytes_before).max(1) as f64;
    format!(
        "; {images} downscaled: {} of image files, {share:.0} % of {}",
        bytes(*bytes_after),
        bytes(*bytes_before)
    )
}

fn pack(
    arguments: &ShardArguments,
    target: &Path,
    options: &OpenOptions,
    output: &Output,
) -> std::result::Result<Vec<Packed>, DataError> {
    let parts = shards::open_splits(&arguments.name, &arguments.source, options)?;
    print_warnings(parts.iter().map(|part| part.set.as_ref()), output);
    let pack_options = PackOptions {
        shard_bytes: arguments.shard_mib << 20,
        shuffle: (!arguments.no_shuffle).then_some(arguments.seed),
        resize: arguments
            .resize
            .map(|side| PackResize { side: usize::from(side), quality: arguments.quality }),
        overwrite: arguments.overwrite,
        skip_damaged: options.skip_damaged,
        staging: options.cache.clone().unwrap_or_else(std::env::temp_dir),
    };
    let mut last_message_at = Instant::now();
    let mut progress = |PackProgress { shard, samples, total }: PackProgress<'_>| {
        if last_message_at.elapsed() > Duration::from_secs(2) {
            last_message_at = Instant::now();
            output.message(&format!("{shard}: {samples} of {total} images"));
        }
    };
    let packed = shards::pack(&parts, target, &pack_options, &mut progress)?;
    let packed = packed.into_iter().map(|part| Packed {
        split: part.split.to_string(),
        shards: part.shards,
        images: part.samples,
        left_out: part.skipped,
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
