//! A machine as it is asked for: a text for whoever administers it, a batch header of Slurm, a block of
//! SkyPilot.

use crate::errors::{Failure, Result};
use crate::output::bytes;
use std::fmt::Write;
use stratus_forecast::bill::{Item, Part};
use stratus_forecast::catalogue::{Machine, Processor};
use stratus_forecast::forecast::Forecast;
use stratus_forecast::text::duration;
use stratus_train::Experiment;

/// How a machine is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Markdown.
    Request,
    /// `#SBATCH` lines.
    Slurm,
    /// YAML.
    Sky,
}

/// By how much more time is asked for than the upper end of the interval.
const MARGIN: f64 = 1.2;
/// Seconds for starting the machine and installing the program, which the bill does not have.
const SETTING_UP: f64 = 900.0;
/// By how much more memory is asked for than is expected.
const MEMORY_MARGIN: f64 = 1.25;
/// Bytes of disk beside checkpoints: the program, its libraries, its cache.
const PROGRAM_DISK: u64 = 10 << 30;

/// What is asked for.
struct Needs<'a> {
    experiment: &'a Experiment,
    command: String,
    machine: &'a Machine,
    row: &'a Forecast,
    seconds: f64,
    ram_gib: u64,
    cores: u64,
    disk_gib: u64,
}

/// The text.
///
/// # Errors
/// Where the number of images is unknown, and with it the time.
pub(super) fn request(
    form: Form,
    (command, experiment): (String, &Experiment),
    machine: &Machine,
    row: &Forecast,
) -> Result<String> {
    let Some(total) = row.total_high_s else {
        return Err(Failure::usage("a request says for how long, which the number of images decides")
            .hint("give it with --images, or bring the data set here"));
    };
    let gib = |bytes: f64| (bytes / f64::from(1 << 30)).ceil().max(1.0) as u64;
    let needs = Needs {
        experiment,
        command,
        machine,
        row,
        seconds: MARGIN * total + SETTING_UP,
        ram_gib: gib(MEMORY_MARGIN * row.host_bytes as f64),
        cores: experiment.data.workers.unwrap_or(1) as u64 + 1,
        disk_gib: gib((row.disk_bytes + PROGRAM_DISK) as f64),
    };
    match form {
        Form::Request => Ok(needs.markdown()),
        Form::Slurm => Ok(needs.slurm()),
        Form::Sky => needs.sky(),
    }
}

impl Needs<'_> {
    /// Writing into a String cannot fail: the results of `write!` are dropped.
    fn markdown(&self) -> String {
        let Self { experiment, machine, row, ram_gib, cores, disk_gib, .. } = self;
        let mut text =
            format!("# A machine to train {}\n\n| what | how much |\n|---|---|\n", experiment.name());
        let mut line = |what: &str, how_much: String| {
            let _ = writeln!(text, "| {what} | {how_much} |");
        };
        match &machine.processor {
            Processor::Gpu(gpu) => {
                line("GPU", format!("one {}, or one with as much memory and speed", gpu.title));
                line("GPU memory", format!("at least {}", bytes(row.device_bytes)));
            }
            Processor::Cpu(cpu) => line("processor", format!("{}, {} cores", cpu.title, cpu.cores)),
        }
        if let Some(instance) = &machine.instance {
            line("instance", format!("{} ({})", instance.name, instance.cloud));
        }
        line("memory", format!("{ram_gib} GiB"));
        line("cores", format!("{cores} for the program and the {} that decode images", cores - 1));
        line("disk", format!("{disk_gib} GiB, and the data set"));
        let expected = duration(self.row.total_s.unwrap_or(0.0));
        line("time", format!("{}; {expected} of it are expected to be used", duration(self.seconds)));
        line("of these", self.parts());
        if let (Some(price), Some(currency)) = (row.price, &row.currency) {
            line(
                "price",
                format!("{price:.2} {currency} expected, up to {:.2}", row.price_high.unwrap_or(price)),
            );
        }
        line("software", self.software().to_owned());
        line(
            "data to move",
            format!(
                "data set `{}` there; {} of checkpoints back",
                experiment.data.name,
                bytes(row.disk_bytes)
            ),
        );
        let _ = writeln!(
            text,
            "\n`{}` runs {} epochs in batches of {}. It saves its state every {:.0} seconds: a \
             machine that is taken away costs no more than that, and the start.",
            self.command, experiment.train.epochs, row.batch, experiment.checkpoint.every_seconds
        );
        text
    }

    /// What the expected time is for.
    fn parts(&self) -> String {
        let parts = self.row.bill.iter().filter(|part| part.part != Item::Total);
        let named = parts.filter_map(|part| {
            let hours = part.hours.filter(|&hours| hours > 0.0)?;
            Some(format!("{} {}", part.part.name(), duration(3600.0 * hours)))
        });
        named.collect::<Vec<_>>().join(", ")
    }

    /// Whether the bill is that of a machine that is taken away now and then.
    fn is_spot(&self) -> bool {
        let lost =
            |part: &Part| part.part == Item::Preemptions && part.hours.is_some_and(|hours| hours > 0.0);
        self.row.bill.iter().any(lost)
    }

    fn slurm(&self) -> String {
        let gres = match &self.machine.processor {
            Processor::Gpu(gpu) => format!("#SBATCH --gres=gpu:1                # {}\n", gpu.title),
            Processor::Cpu(_) => String::new(),
        };
        let minutes = (self.seconds / 60.0).ceil() as u64;
        let cores = match &self.machine.processor {
            Processor::Gpu(_) => self.cores,
            Processor::Cpu(cpu) => cpu.cores as u64,
        };
        format!(
            "#!/usr/bin/env bash\n#SBATCH --job-name={}\n{gres}#SBATCH --cpus-per-task={cores}\n\
             #SBATCH --mem={}G\n#SBATCH --time={}-{:02}:{:02}:00\n#SBATCH --signal=TERM@120\n\
             #SBATCH --requeue\n\n\
             srun {}\n",
            self.experiment.name(),
            self.ram_gib,
            minutes / 1440,
            minutes / 60 % 24,
            minutes % 60,
            self.command,
        )
    }

    fn sky(&self) -> Result<String> {
        let accelerators = match &self.machine.processor {
            Processor::Gpu(gpu) => match &gpu.skypilot {
                Some(name) => format!("  accelerators: {name}:1\n"),
                None => {
                    return Err(Failure::usage(format!(
                        "the catalogue has no name of SkyPilot for {}",
                        gpu.name
                    ))
                    .hint("give it as `skypilot` of its row, in a file with --machines"));
                }
            },
            Processor::Cpu(_) => String::new(),
        };
        let instance = self.machine.instance.as_ref().map_or(String::new(), |instance| {
            format!("  infra: {}\n  instance_type: {}\n", instance.cloud, instance.name)
        });
        Ok(format!(
            "resources:\n{instance}{accelerators}{}  cpus: {}+\n  memory: {}+\n  disk_size: {}\n\n\
             run: {}\n",
            if self.is_spot() { "  use_spot: true\n" } else { "" },
            self.cores,
            self.ram_gib,
            self.disk_gib,
            self.command,
        ))
    }

    fn software(&self) -> &'static str {
        match self.machine.processor {
            Processor::Gpu(_) => "Linux, NVIDIA's driver, cuDNN 9, cuBLAS, NVRTC; no compiler, no root",
            Processor::Cpu(_) => "Linux, oneDNN 3; no compiler, no root",
        }
    }
}
