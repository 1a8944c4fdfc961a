//! Resource requests for a machine: Markdown for its administrators, a Slurm batch script, a SkyPilot task.

use crate::errors::{Failure, Result};
use std::fmt::Write;
use stratus_base::text::{bytes, counted, duration};
use stratus_experiment::Experiment;
use stratus_forecast::bill::{BillItem, BillLine};
use stratus_forecast::catalogue::{Machine, Processor};
use stratus_forecast::forecast::Forecast;

/// The format of a resource request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFormat {
    /// Markdown.
    Request,
    /// `#SBATCH` lines.
    Slurm,
    /// YAML.
    Sky,
}

/// Bytes of disk besides checkpoints: the program, its libraries, its cache.
const PROGRAM_DISK_BYTES: u64 = 10 << 30;

/// A resource request.
struct ResourceRequest<'a> {
    experiment: &'a Experiment,
    command: String,
    machine: &'a Machine,
    row: &'a Forecast,
    seconds: f64,
    ram_gib: u64,
    cores: u64,
    disk_gib: u64,
}

/// Renders a resource request.
///
/// # Errors
/// If the number of images, and so the time, is unknown.
pub(super) fn render_request(
    format: RequestFormat,
    (command, experiment): (String, &Experiment),
    machine: &Machine,
    row: &Forecast,
) -> Result<String> {
    let Some(seconds) = row.requested_seconds() else {
        return Err(Failure::usage("a resource request needs the total time: number of images unknown")
            .with_hint("set --images, or download the data set"));
    };
    let gib = |bytes: f64| (bytes / f64::from(1 << 30)).ceil().max(1.0) as u64;
    let needs = ResourceRequest {
        experiment,
        command,
        machine,
        row,
        seconds,
        ram_gib: gib(row.requested_memory_bytes()),
        cores: row.loader_threads + 1,
        disk_gib: gib((row.disk_bytes + PROGRAM_DISK_BYTES) as f64),
    };
    match format {
        RequestFormat::Request => Ok(needs.markdown()),
        RequestFormat::Slurm => Ok(needs.slurm()),
        RequestFormat::Sky => needs.sky(),
    }
}

impl ResourceRequest<'_> {
    fn markdown(&self) -> String {
        let Self { experiment, machine, row, ram_gib, cores, disk_gib, .. } = self;
        let mut text = format!(
            "# Resource request: training of {}\n\n| resource | amount |\n|---|---|\n",
            experiment.name()
        );
        // Writing into a String cannot fail.
        let mut line = |resource: &str, amount: String| {
            let _ = writeln!(text, "| {resource} | {amount} |");
        };
        match &machine.processor {
            Processor::Gpu(gpu) => {
                line("GPU", format!("one {}, or one of equal memory and speed", gpu.title));
                line("GPU memory", format!("at least {}", bytes(row.device_bytes)));
            }
            Processor::Cpu(cpu) => line("CPU", format!("{}, {} cores", cpu.title, cpu.cores)),
        }
        if let Some(instance) = &machine.instance {
            line("instance", format!("{} ({})", instance.name, instance.cloud));
        }
        line("memory", format!("{ram_gib} GiB"));
        line("cores", format!("{cores}: one for the program, {} to decode images", cores - 1));
        line("disk", format!("{disk_gib} GiB, plus the data set"));
        let expected = duration(self.row.total_s.unwrap_or(0.0));
        line("time", format!("{}, of which {expected} are expected to be used", duration(self.seconds)));
        line("expected time", self.time_items());
        if let (Some(price), Some(currency)) = (row.cost.price, &row.cost.currency) {
            line(
                "price",
                format!("{price:.2} {currency} expected, up to {:.2}", row.cost.price_high.unwrap_or(price)),
            );
        }
        line("software", self.software().to_owned());
        line(
            "data transfer",
            format!(
                "data set `{}` to the machine; {} of checkpoints back",
                experiment.data.name,
                bytes(row.disk_bytes)
            ),
        );
        let _ = writeln!(
            text,
            "\n`{}` trains {} in batches of {}. It saves a checkpoint every {:.0} seconds: \
             a preemption loses no more than that, and the startup.",
            self.command,
            counted(experiment.train.epochs, "epoch"),
            row.batch,
            experiment.checkpoint.every_seconds
        );
        text
    }

    /// The items of the expected time.
    fn time_items(&self) -> String {
        let parts = self.row.bill.iter().filter(|part| part.part != BillItem::Total);
        let named = parts.filter_map(|part| {
            let hours = part.hours.filter(|&hours| hours > 0.0)?;
            Some(format!("{} {}", part.part.name(), duration(3600.0 * hours)))
        });
        named.collect::<Vec<_>>().join(", ")
    }

    /// Returns whether the bill counts preemptions.
    fn is_spot(&self) -> bool {
        let has_preemptions = |part: &BillLine| {
            part.part == BillItem::Preemptions && part.hours.is_some_and(|hours| hours > 0.0)
        };
        self.row.bill.iter().any(has_preemptions)
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
                        "the catalogue has no SkyPilot name for {}",
                        gpu.name
                    ))
                    .with_hint("add `skypilot` to its row, in a file for --machines"));
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
