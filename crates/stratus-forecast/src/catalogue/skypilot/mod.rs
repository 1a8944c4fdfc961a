//! Cloud instances and prices of SkyPilot's catalogue, which SkyPilot keeps in
//! `~/.sky/catalogs/<version>/<cloud>/vms.csv`.
//!
//! The files are untrusted. Damaged rows are left out and reported.

use super::{Gpu, Instance, rows};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use stratus_base::read_at_most;
use stratus_base::time::timestamp;

/// Maximum size of a cloud's file. That of Amazon has 4 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum number of clouds.
const MAX_CLOUDS: usize = 256;
/// Maximum number of damaged rows that are described.
const MAX_PROBLEMS: usize = 5;
/// Maximum relative difference between the memory of an accelerator and of the GPU that it is taken for.
const MAX_MEMORY_DIFFERENCE: f64 = 0.15;
/// Sizes of accelerators below this number of MiB are in another unit, and ignored.
const MIN_MEMORY_MIB: f64 = 1024.0;
/// Google Cloud's machine types with a fixed GPU, whose price is in other rows: the prefix of the type and
/// the accelerator. The number of GPUs follows the prefix (`a2-highgpu-8g`).
const GOOGLE_FAMILIES: [(&str, &str); 7] = [
    ("a2-highgpu-", "A100"),
    ("a2-megagpu-", "A100"),
    ("a2-ultragpu-", "A100-80GB"),
    ("a3-highgpu-", "H100"),
    ("a3-megagpu-", "H100-MEGA"),
    ("a3-ultragpu-", "H200"),
    ("a4-highgpu-", "B200"),
];
/// Google Cloud's `g2-standard` types: virtual CPUs and number of L4.
const GOOGLE_L4: [(&str, u32); 8] =
    [("4", 1), ("8", 1), ("12", 1), ("16", 1), ("32", 1), ("24", 2), ("48", 4), ("96", 8)];

/// The instances of SkyPilot's catalogue that have a known GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SkyPilotCatalogue {
    /// The folder of the newest version.
    pub folder: PathBuf,
    /// The clouds with at least one instance.
    pub clouds: BTreeSet<String>,
    /// An instance of each type of each cloud, in the region with the lowest price.
    pub instances: Vec<Instance>,
    /// Accelerators that are not in the machine catalogue.
    pub unknown_accelerators: BTreeSet<String>,
    /// The number of damaged rows.
    pub damaged_rows: usize,
    /// The first damaged rows: file, line and problem.
    pub problems: Vec<String>,
}

/// The folder in which SkyPilot keeps catalogues: `~/.sky/catalogs`, if it exists.
#[must_use]
pub fn default_folder() -> Option<PathBuf> {
    let folder = Path::new(&std::env::var_os("HOME")?).join(".sky/catalogs");
    folder.is_dir().then_some(folder)
}

/// Reads the newest version of a folder of SkyPilot's catalogues.
///
/// # Errors
/// If the folder has no catalogue, or a file cannot be read or lacks a column.
pub fn read(folder: &Path, gpus: &[Gpu]) -> Result<SkyPilotCatalogue> {
    let version = newest_version(folder)?;
    let mut catalogue = SkyPilotCatalogue { folder: version.clone(), ..SkyPilotCatalogue::default() };
    let mut clouds: Vec<PathBuf> = subfolders(&version)?;
    clouds.retain(|cloud| cloud.join("vms.csv").is_file());
    clouds.sort();
    if clouds.is_empty() || clouds.len() > MAX_CLOUDS {
        let problem = format!("it has {} clouds; expected 1 to {MAX_CLOUDS}", clouds.len());
        return Err(Error::File { file: version.display().to_string(), problem });
    }
    for cloud in clouds {
        let name = cloud.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        catalogue.read_cloud(&name, &cloud.join("vms.csv"), gpus)?;
    }
    Ok(catalogue)
}

/// The subfolders of a folder.
fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let problem = |error: std::io::Error| Error::Read {
        file: folder.display().to_string(),
        problem: error.to_string(),
    };
    let mut folders = Vec::new();
    for entry in folder.read_dir().map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        folders.extend(path.is_dir().then_some(path));
    }
    Ok(folders)
}

/// The subfolder `v<N>` with the highest N, or the folder itself if it has none.
fn newest_version(folder: &Path) -> Result<PathBuf> {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix('v')?.parse::<u32>().ok();
    let newest = subfolders(folder)?.into_iter().filter_map(|path| Some((version(&path)?, path))).max();
    Ok(newest.map_or_else(|| folder.to_owned(), |(_, path)| path))
}

/// The columns of a file.
struct Columns {
    instance: usize,
    accelerator: usize,
    accelerators: usize,
    vcpus: usize,
    memory: usize,
    price: usize,
    region: usize,
    spot_price: Option<usize>,
    zone: Option<usize>,
    gpu_info: Option<usize>,
}

impl Columns {
    fn new(heading: &csv::StringRecord) -> std::result::Result<Self, String> {
        let find = |name: &str| heading.iter().position(|known| known.trim() == name);
        let column = |name: &str| find(name).ok_or_else(|| format!("missing column `{name}`"));
        Ok(Self {
            instance: column("InstanceType")?,
            accelerator: column("AcceleratorName")?,
            accelerators: column("AcceleratorCount")?,
            vcpus: column("vCPUs")?,
            memory: column("MemoryGiB")?,
            price: column("Price")?,
            region: column("Region")?,
            spot_price: find("SpotPrice"),
            zone: find("AvailabilityZone"),
            gpu_info: find("GpuInfo"),
        })
    }
}

/// A row of a file: an offer in a region or zone.
#[derive(Clone, Debug, PartialEq)]
struct Offer {
    instance: String,
    /// Name, number and [description](Self::describes_pcie) of the accelerators.
    accelerator: String,
    accelerators: u32,
    gpu_info: String,
    vcpus: Option<u32>,
    memory_gib: Option<f64>,
    /// Prices per hour on demand and preemptible.
    prices: [Option<f64>; 2],
    region: String,
    zone: String,
}

impl Offer {
    fn parse(record: &csv::StringRecord, columns: &Columns) -> std::result::Result<Self, String> {
        let text = |column: usize| record.get(column).unwrap_or_default().trim();
        let number = |column: usize, name: &str, max: f64| match text(column) {
            "" => Ok(None),
            text => match text.parse::<f64>() {
                Ok(number) if (0.0..=max).contains(&number) => Ok(Some(number)),
                _ => Err(format!("{name} must be a number from 0 to {max}, but is `{text}`")),
            },
        };
        let whole = |column: usize, name: &str, max: f64| match number(column, name, max)? {
            Some(number) if number.fract() != 0.0 => {
                Err(format!("{name} must be a whole number, but is {number}"))
            }
            number => Ok(number.map(|number| number as u32)),
        };
        let above_zero = |number: Option<f64>| number.filter(|&number| number > 0.0);
        let spot = columns.spot_price.map_or(Ok(None), |spot| number(spot, "SpotPrice", rows::MAX_PRICE))?;
        let offer = Self {
            instance: text(columns.instance).to_owned(),
            accelerator: text(columns.accelerator).to_owned(),
            accelerators: whole(columns.accelerators, "AcceleratorCount", 1024.0)?.unwrap_or(0),
            gpu_info: columns.gpu_info.map_or("", text).to_owned(),
            vcpus: number(columns.vcpus, "vCPUs", 1e5)?.map(|vcpus| vcpus as u32).filter(|&vcpus| vcpus > 0),
            memory_gib: above_zero(number(columns.memory, "MemoryGiB", 1e6)?),
            // A price of 0 stands for an unknown one.
            prices: [above_zero(number(columns.price, "Price", rows::MAX_PRICE)?), above_zero(spot)],
            region: text(columns.region).to_owned(),
            zone: columns.zone.map_or("", text).to_owned(),
        };
        if !offer.instance.is_empty() && !rows::is_name(&offer.instance) {
            return Err(format!(
                "InstanceType must be up to 64 letters, digits, `-`, `.`, `_` and `+`, but is `{}`",
                offer.instance
            ));
        }
        if !offer.accelerator.is_empty() && offer.accelerators == 0 {
            return Err("AcceleratorCount must be above 0".to_owned());
        }
        Ok(offer)
    }

    /// Adds the price of its GPUs, which is in rows of its own, to a Google Cloud machine type that has them.
    fn add_google_gpus(&mut self, gpus: &BTreeMap<(String, u32, String), [Option<f64>; 2]>) {
        let families = GOOGLE_FAMILIES.iter().filter_map(|(prefix, name)| {
            let count = self.instance.strip_prefix(prefix)?.strip_suffix('g')?.parse().ok()?;
            Some((*name, count))
        });
        let l4 = GOOGLE_L4.iter().filter_map(|(vcpus, count)| {
            (self.instance.strip_prefix("g2-standard-")? == *vcpus).then_some(("L4", *count))
        });
        let Some((name, count)) = families.chain(l4).next() else { return };
        let Some(prices) = gpus.get(&(name.to_owned(), count, self.zone.clone())) else { return };
        (self.accelerator, self.accelerators) = (name.to_owned(), count);
        for (host, gpus) in self.prices.iter_mut().zip(prices) {
            *host = host.zip(*gpus).map(|(host, gpus)| host + gpus);
        }
    }

    /// Returns whether the accelerator is described as a PCIe card.
    fn describes_pcie(&self) -> bool {
        let mentions = |text: &str| text.to_ascii_lowercase().contains("pcie");
        mentions(&self.instance) || mentions(&self.accelerator) || mentions(&self.gpu_info)
    }

    /// The GPU of the machine catalogue, by name, form and memory.
    fn find_gpu<'a>(&self, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
        let is_pcie = self.describes_pcie();
        let memory = memory_mib(&self.gpu_info);
        let named = gpus.iter().filter(|gpu| gpu.has_skypilot_name(&self.accelerator));
        let fitting = named.filter(|gpu| {
            let memory_of = |count: f64| memory.map(|mib| mib / count / (1024.0 * gpu.memory_gib) - 1.0);
            // Some clouds state the memory of one, some of all accelerators.
            let differences = [memory_of(1.0), memory_of(f64::from(self.accelerators))];
            differences.into_iter().any(|found| found.is_none_or(|found| found.abs() < MAX_MEMORY_DIFFERENCE))
        });
        fitting.min_by_key(|gpu| gpu.name.ends_with("-pcie") != is_pcie)
    }
}

/// The memory of an accelerator in MiB, from its description, a dictionary of Python or JSON; `None` if it is
/// unknown.
fn memory_mib(gpu_info: &str) -> Option<f64> {
    let (_, text) = gpu_info.split_once("SizeInMiB")?;
    let digits: String = text
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    digits.parse().ok().filter(|&mib| mib >= MIN_MEMORY_MIB)
}

impl SkyPilotCatalogue {
    fn read_cloud(&mut self, cloud: &str, path: &Path, gpus: &[Gpu]) -> Result<()> {
        let file = path.display().to_string();
        // The date of the download: SkyPilot fetches the file again when it is older than some hours.
        let modified = path.metadata().and_then(|metadata| metadata.modified());
        let date = &timestamp(modified.unwrap_or(SystemTime::UNIX_EPOCH))[..10];
        let bytes = read_at_most(path, MAX_FILE_BYTES)
            .map_err(|error| Error::Read { file: file.clone(), problem: error.to_string() })?;
        self.add_cloud((cloud, date), (&file, &bytes), gpus)
    }

    /// Adds the instances of a cloud, with the date of its prices, from the name and content of its file.
    ///
    /// # Errors
    /// If the file lacks a column.
    pub fn add_cloud(
        &mut self,
        (cloud, date): (&str, &str),
        (file, bytes): (&str, &[u8]),
        gpus: &[Gpu],
    ) -> Result<()> {
        let offers = self.read_offers(file, bytes)?;
        let mut types: BTreeMap<String, Instance> = BTreeMap::new();
        for offer in offers.iter().filter(|offer| !offer.accelerator.is_empty()) {
            let Some(gpu) = offer.find_gpu(gpus) else {
                self.unknown_accelerators.insert(offer.accelerator.clone());
                continue;
            };
            if offer.prices == [None; 2] {
                continue;
            }
            let instance = types.entry(offer.instance.clone()).or_insert_with(|| Instance {
                name: offer.instance.clone(),
                cloud: cloud.to_owned(),
                gpu: gpu.name.clone(),
                gpus: offer.accelerators,
                vcpus: offer.vcpus,
                ram_gib: offer.memory_gib,
                disk_gb: None,
                network: None,
                region: None,
                on_demand_per_hour: None,
                spot_region: None,
                spot_per_hour: None,
                currency: Some("USD".to_owned()),
                source: format!("SkyPilot's catalogue of {cloud}"),
                date: date.to_owned(),
            });
            let region = Some(offer.region.clone()).filter(|region| !region.is_empty());
            take_lower(&mut instance.on_demand_per_hour, &mut instance.region, offer.prices[0], &region);
            take_lower(&mut instance.spot_per_hour, &mut instance.spot_region, offer.prices[1], &region);
        }
        if !types.is_empty() {
            self.clouds.insert(cloud.to_owned());
        }
        self.instances.extend(types.into_values());
        Ok(())
    }

    /// Reads the rows with an instance, and adds the prices of GPUs that are in rows of their own.
    fn read_offers(&mut self, file: &str, bytes: &[u8]) -> Result<Vec<Offer>> {
        let invalid = |problem: String| Error::File { file: file.to_owned(), problem };
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bytes);
        let heading = reader.headers().map_err(|error| invalid(error.to_string()))?.clone();
        let columns = Columns::new(&heading).map_err(invalid)?;
        let mut offers: Vec<Offer> = Vec::new();
        let mut gpus = BTreeMap::new();
        let mut record = csv::StringRecord::new();
        loop {
            let line = reader.position().line();
            let parsed = match reader.read_record(&mut record) {
                Ok(false) => break,
                Ok(true) if record.len() != heading.len() => {
                    Err(format!("it has {} fields, but the header has {}", record.len(), heading.len()))
                }
                Ok(true) => Offer::parse(&record, &columns),
                // The bytes are in memory, so that only those that are not UTF-8 are an error.
                Err(_) => Err("it is not valid UTF-8".to_owned()),
            };
            match parsed {
                Ok(offer) if !offer.instance.is_empty() => offers.push(offer),
                Ok(gpu) if !gpu.accelerator.is_empty() => {
                    gpus.insert((gpu.accelerator, gpu.accelerators, gpu.zone), gpu.prices);
                }
                Ok(_) => self.report(file, line, "it has neither InstanceType nor AcceleratorName"),
                Err(problem) => self.report(file, line, &problem),
            }
        }
        if !gpus.is_empty() {
            offers
                .iter_mut()
                .filter(|offer| offer.accelerator.is_empty())
                .for_each(|offer| offer.add_google_gpus(&gpus));
        }
        Ok(offers)
    }

    fn report(&mut self, file: &str, line: u64, problem: &str) {
        self.damaged_rows += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("{file}, line {line}: {problem}"));
        }
    }
}

/// Takes a price, with its region, if it is lower than the known one.
fn take_lower(
    price: &mut Option<f64>,
    region: &mut Option<String>,
    offered: Option<f64>,
    offered_region: &Option<String>,
) {
    if let Some(offered) = offered.filter(|&offered| price.is_none_or(|known| offered < known)) {
        *price = Some(offered);
        region.clone_from(offered_region);
    }
}

#[cfg(test)]
mod tests;
