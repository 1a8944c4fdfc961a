//! The energy of a run, from the counters of the processor's packages and of the GPU.

use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use stratus_engine::device::{DeviceMeter, DeviceUsage};
use stratus_run::machine::energy::PackageEnergyMeter;
use stratus_run::summary::Energy;

/// Joules, including those of other programs; `None` if they are unknown for a part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::run) struct EnergyTotals {
    /// All packages of the processor.
    #[serde(rename = "cpu_energy_j")]
    pub cpu_joules: Option<f64>,
    /// The GPUs; 0 while the run computes on the CPU.
    #[serde(rename = "gpu_energy_j")]
    pub gpu_joules: Option<f64>,
}

impl EnergyTotals {
    /// The energy before the first process of a run.
    const ZERO: Self = Self { cpu_joules: Some(0.0), gpu_joules: Some(0.0) };

    /// The sum; unknown if a summand is.
    fn plus(self, other: Self) -> Self {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        Self {
            cpu_joules: sum(self.cpu_joules, other.cpu_joules),
            gpu_joules: sum(self.gpu_joules, other.gpu_joules),
        }
    }

    /// The energy as in the summary of a run. A run that never computed on a GPU has none of a GPU.
    fn in_summary(self, gpus: RunGpus) -> Energy {
        let [cpu_energy_wh, gpu_energy_wh] =
            [self.cpu_joules, self.gpu_joules].map(|joules| joules.map(|joules| joules / 3600.0));
        let energy_wh = cpu_energy_wh.zip(gpu_energy_wh).map(|(cpu, gpu)| cpu + gpu);
        let gpu_energy_wh = gpu_energy_wh.filter(|gpu| gpus != RunGpus::None || *gpu > 0.0);
        Energy { energy_wh, cpu_energy_wh, gpu_energy_wh }
    }
}

/// The GPUs that the processes of a run compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunGpus {
    /// All compute on CPUs.
    None,
    /// One, whose energy is measured.
    One,
    /// One of each worker. The energy of those of the other workers is unknown here.
    OnePerWorker,
}

/// The energy of a run in all processes.
pub(super) struct RunEnergy {
    meter: SharedEnergyMeter,
    /// The energy of earlier processes up to their last checkpoints.
    previous: EnergyTotals,
    gpus: RunGpus,
}

impl RunEnergy {
    /// The energy of a run that continues from the totals of a checkpoint, or starts without any. Checkpoints
    /// of earlier versions have no energy, so that the run's is unknown.
    pub fn new(meter: SharedEnergyMeter, recorded: Option<EnergyTotals>, gpus: RunGpus) -> Self {
        Self { meter, previous: recorded.unwrap_or(EnergyTotals::ZERO), gpus }
    }

    /// The joules up to now.
    pub fn total(&self) -> EnergyTotals {
        let measured = self.meter.lock().read();
        let gpu_joules = match self.gpus {
            RunGpus::None => Some(0.0),
            RunGpus::One => measured.gpu_joules,
            RunGpus::OnePerWorker => None,
        };
        self.previous.plus(EnergyTotals { gpu_joules, ..measured })
    }

    /// The energy up to now, as in the summary.
    pub fn in_summary(&self) -> Energy {
        self.total().in_summary(self.gpus)
    }
}

/// An energy meter that the trainer and the thread of [`super::usage::UsageSampler`] share.
#[derive(Clone)]
pub(in crate::run) struct SharedEnergyMeter(Arc<Mutex<EnergyMeter>>);

impl SharedEnergyMeter {
    /// Starts to measure the packages of this machine, and a device.
    pub fn start(device: Option<Box<dyn DeviceMeter>>) -> Self {
        Self::new(PackageEnergyMeter::open(), device)
    }

    pub(super) fn new(packages: PackageEnergyMeter, device: Option<Box<dyn DeviceMeter>>) -> Self {
        Self(Arc::new(Mutex::new(EnergyMeter::new(packages, device))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, EnergyMeter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures the energy since it was created.
pub(in crate::run) struct EnergyMeter {
    packages: PackageEnergyMeter,
    device: Option<Box<dyn DeviceMeter>>,
    /// The last reading of the device's counter; `None` if it has none.
    counter: Option<f64>,
    /// The time and value of the last reading of the device's power, if it has no counter.
    power: Option<(Instant, f64)>,
    gpu_joules: Option<f64>,
}

impl EnergyMeter {
    fn new(packages: PackageEnergyMeter, mut device: Option<Box<dyn DeviceMeter>>) -> Self {
        let counter = device.as_mut().and_then(|device| device.joules());
        let watts = match counter {
            Some(_) => None,
            None => device.as_mut().and_then(|device| device.usage().watts),
        };
        let power = watts.map(|watts| (Instant::now(), watts));
        let gpu_joules = counter.or(watts).map(|_| 0.0);
        Self { packages, device, counter, power, gpu_joules }
    }

    /// The energy up to now.
    pub fn read(&mut self) -> EnergyTotals {
        let watts = match self.counter {
            Some(_) => None,
            None => self.device.as_mut().and_then(|device| device.usage().watts),
        };
        self.update(watts, Instant::now())
    }

    /// The current use of the device, and the energy up to now.
    pub fn sample(&mut self) -> (DeviceUsage, EnergyTotals) {
        let usage = self.device.as_mut().map_or(DeviceUsage::default(), |device| device.usage());
        (usage, self.update(usage.watts, Instant::now()))
    }

    /// The energy at the time `now`, when the device draws `watts`. Without a counter of the device, its
    /// power is integrated by the trapezoidal rule, if it was known from the start.
    fn update(&mut self, watts: Option<f64>, now: Instant) -> EnergyTotals {
        if let Some(before) = self.counter {
            if let Some(after) = self.device.as_mut().and_then(|device| device.joules()) {
                self.counter = Some(after);
                self.gpu_joules = self.gpu_joules.map(|joules| joules + (after - before).max(0.0));
            }
        } else if let Some(((then, before), watts)) = self.power.zip(watts) {
            let joules = 0.5 * (before + watts) * now.saturating_duration_since(then).as_secs_f64();
            self.power = Some((now, watts));
            self.gpu_joules = self.gpu_joules.map(|sum| sum + joules);
        }
        EnergyTotals { cpu_joules: self.packages.joules(), gpu_joules: self.gpu_joules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    /// A device with a counter that grows by 5 J at each reading, or with a power.
    struct TestDevice {
        joules: Option<f64>,
        watts: Option<f64>,
    }

    impl DeviceMeter for TestDevice {
        fn usage(&mut self) -> DeviceUsage {
            DeviceUsage { watts: self.watts, ..DeviceUsage::default() }
        }

        fn joules(&mut self) -> Option<f64> {
            self.joules = self.joules.map(|joules| joules + 5.0);
            self.joules
        }
    }

    fn meter(powercap: &Path, joules: Option<f64>, watts: Option<f64>) -> EnergyMeter {
        EnergyMeter::new(PackageEnergyMeter::under(powercap), Some(Box::new(TestDevice { joules, watts })))
    }

    /// Writes the counter of a package.
    fn write_package(powercap: &Path, microjoules: u64) {
        let zone = powercap.join("intel-rapl:0");
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), "package-0\n").unwrap();
        fs::write(zone.join("max_energy_range_uj"), "10000000\n").unwrap();
        fs::write(zone.join("energy_uj"), format!("{microjoules}\n")).unwrap();
    }

    #[test]
    fn counters_of_packages_and_device_are_read() {
        let root = tempfile::tempdir().unwrap();
        write_package(root.path(), 9_000_000);
        let mut meter = meter(root.path(), Some(1000.0), Some(70.0));
        let before = meter.read().gpu_joules.unwrap();
        write_package(root.path(), 1_000_000);
        let (usage, energy) = meter.sample();
        assert_eq!((usage.watts, energy.cpu_joules), (Some(70.0), Some(2.0)));
        assert_eq!(energy.gpu_joules, Some(before + 5.0));
    }

    #[test]
    fn resumed_run_adds_up_its_parts() {
        let root = tempfile::tempdir().unwrap();
        // A process with a meter, during which the packages use some energy.
        let process = |recorded: Option<EnergyTotals>, microjoules: u64| {
            write_package(root.path(), 0);
            let meter = SharedEnergyMeter::new(PackageEnergyMeter::under(root.path()), None);
            let energy = RunEnergy::new(meter, recorded, RunGpus::None);
            write_package(root.path(), microjoules);
            energy
        };
        let checkpoint = serde_json::to_value(process(None, 2_000_000).total()).unwrap();
        let recorded: EnergyTotals = serde_json::from_value(checkpoint).unwrap();
        let energy = process(Some(recorded), 1_000_000).in_summary();
        assert_eq!(energy.energy_wh, Some(3.0 / 3600.0));
        assert_eq!(energy.cpu_energy_wh, energy.energy_wh);
        // The first part of this run was trained by an earlier version.
        assert_eq!(process(Some(EnergyTotals::default()), 1_800_000).in_summary(), Energy::default());
        // The first part of this one was trained on a GPU.
        let recorded = EnergyTotals { cpu_joules: Some(3600.0), gpu_joules: Some(7200.0) };
        let energy = process(Some(recorded), 0).in_summary();
        let expected = Energy { energy_wh: Some(3.0), cpu_energy_wh: Some(1.0), gpu_energy_wh: Some(2.0) };
        assert_eq!(energy, expected);
    }

    #[test]
    fn energy_of_the_gpus_of_several_workers_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        write_package(root.path(), 0);
        let meter = SharedEnergyMeter(Arc::new(Mutex::new(meter(root.path(), Some(0.0), None))));
        let energy = |gpus| RunEnergy::new(meter.clone(), None, gpus).in_summary();
        assert!(energy(RunGpus::One).energy_wh.is_some());
        let cpu = Energy { energy_wh: None, cpu_energy_wh: Some(0.0), gpu_energy_wh: None };
        assert_eq!(energy(RunGpus::OnePerWorker), cpu);
    }

    #[test]
    fn power_is_integrated_without_a_counter() {
        let none = tempfile::tempdir().unwrap();
        let mut meter = meter(none.path(), None, Some(100.0));
        let (started, _) = meter.power.unwrap();
        assert_eq!(meter.update(Some(200.0), started + Duration::from_secs(2)).gpu_joules, Some(300.0));
        // A reading that fails does not end the measurement.
        assert_eq!(meter.update(None, started + Duration::from_secs(3)).gpu_joules, Some(300.0));
        let energy = meter.update(Some(200.0), started + Duration::from_secs(4));
        assert_eq!(energy, EnergyTotals { cpu_joules: None, gpu_joules: Some(700.0) });
    }

    #[test]
    fn device_without_power_has_no_energy() {
        let none = tempfile::tempdir().unwrap();
        let mut meter = meter(none.path(), None, None);
        assert_eq!(meter.sample().1, EnergyTotals::default());
        // Its energy until the first reading of its power is unknown.
        assert_eq!(meter.update(Some(100.0), Instant::now()), EnergyTotals::default());
        let mut no_device = EnergyMeter::new(PackageEnergyMeter::under(none.path()), None);
        assert_eq!(no_device.sample(), (DeviceUsage::default(), EnergyTotals::default()));
    }

    #[test]
    fn total_is_unknown_if_a_part_is() {
        let first = EnergyTotals { cpu_joules: Some(3600.0), gpu_joules: None };
        let sum = EnergyTotals::ZERO.plus(first).plus(EnergyTotals { cpu_joules: Some(1800.0), ..first });
        assert_eq!(sum, EnergyTotals { cpu_joules: Some(5400.0), gpu_joules: None });
        let on_cpu = Energy { energy_wh: Some(1.5), cpu_energy_wh: Some(1.5), gpu_energy_wh: None };
        assert_eq!(EnergyTotals { gpu_joules: Some(0.0), ..sum }.in_summary(RunGpus::None), on_cpu);
        assert_eq!(sum.in_summary(RunGpus::One), Energy { energy_wh: None, ..on_cpu });
        let both = EnergyTotals { gpu_joules: Some(7200.0), ..sum };
        let on_gpu = Energy { energy_wh: Some(3.5), gpu_energy_wh: Some(2.0), ..on_cpu };
        assert_eq!(both.in_summary(RunGpus::One), on_gpu);
        // A run of an earlier version, whose energy was not measured.
        assert_eq!(EnergyTotals::default().plus(both), EnergyTotals::default());
    }
}
