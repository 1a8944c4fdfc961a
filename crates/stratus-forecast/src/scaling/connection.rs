//! How devices are connected: links of the catalogue, or given rates.

use super::{ExchangeModel, Link, Network, Staging};
use crate::catalogue::{Machine, Processor};
use crate::error::{Error, Result};
use crate::text;

/// The fraction of a link's rate in its specification that messages reach. Rates that the user gives are
/// taken as they are.
const LINK_EFFICIENCY: f64 = 0.8;
/// The fraction of the bandwidth of device memory that adding two vectors reaches.
const MEMORY_EFFICIENCY: f64 = 0.8;
/// Latency between devices of one machine, seconds: the launch of a kernel or copy on both sides.
const LOCAL_LATENCY_S: f64 = 10e-6;
/// Latency of other links, seconds, typical of machines in the same room.
const DEFAULT_LATENCY_S: f64 = 50e-6;
/// Bandwidth of messages between two processes of a machine, bytes/s, and of the memory in which one thread
/// adds: with these, an exchange of 98 MiB between two processes takes 42 ms, as measured on an EPYC with
/// `stratus bench exchange`.
const PROCESS_LINK_BYTES_PER_S: f64 = 3.8e9;
const HOST_MEMORY_BYTES_PER_S: f64 = 10e9;

/// The link between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Between {
    /// NVLink, with the rate of the catalogue.
    Nvlink,
    /// PCI Express, with the rate of the catalogue.
    Pcie,
    /// Bytes/s.
    Rate(f64),
}

impl Between {
    /// Parses `nvlink`, `pcie` or a rate such as `10Gbit/s`.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn parse(text: &str) -> Result<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "nvlink" => Ok(Self::Nvlink),
            "pcie" => Ok(Self::Pcie),
            _ => text::bytes_per_second("between", text).map(Self::Rate),
        }
    }
}

/// The connection of devices, as requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connection {
    /// The link between devices; `None` for the fastest that the catalogue knows of a GPU.
    pub between: Option<Between>,
    /// Bytes/s of the network of a machine; `None` for that of the catalogue's instance.
    pub network: Option<f64>,
    /// Devices of a machine; `None` for the GPUs of the catalogue's instance, otherwise all of them.
    pub devices_per_machine: Option<u64>,
    /// Latency of every link, seconds; `None` for the usual one.
    pub latency_s: Option<f64>,
    /// True if gradients are copied through host memory and added there.
    pub is_staged: bool,
    /// Bytes that are sent per gradient.
    pub value_bytes: f64,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            between: None,
            network: None,
            devices_per_machine: None,
            latency_s: None,
            is_staged: false,
            value_bytes: 4.0,
        }
    }
}

impl Connection {
    /// The exchange between devices of a machine. It needs a network only for more devices than a machine
    /// has.
    ///
    /// # Errors
    /// If the catalogue lacks a rate.
    pub fn model(&self, machine: &Machine, devices: u64) -> Result<ExchangeModel> {
        let lacks = |figure| Error::Figure { machine: machine.processor.name().to_owned(), figure };
        let gpu = match &machine.processor {
            Processor::Gpu(gpu) => Some(gpu),
            Processor::Cpu(_) => None,
        };
        let links = gpu.and_then(|gpu| gpu.links.as_ref());
        let (nvlink, pcie) =
            (links.and_then(|links| links.nvlink_gb_s), links.and_then(|links| links.pcie_gb_s));
        let local = |gb_s: f64| Link {
            bytes_per_s: gb_s * 1e9 * LINK_EFFICIENCY,
            latency_s: self.latency_s.unwrap_or(LOCAL_LATENCY_S),
        };
        let other =
            |bytes_per_s| Link { bytes_per_s, latency_s: self.latency_s.unwrap_or(DEFAULT_LATENCY_S) };
        let link = match self.between {
            Some(Between::Rate(bytes_per_s)) => other(bytes_per_s),
            Some(Between::Nvlink) => local(nvlink.ok_or_else(|| lacks("NVLink rate"))?),
            Some(Between::Pcie) => local(pcie.ok_or_else(|| lacks("PCI Express rate"))?),
            None if self.is_staged => other(PROCESS_LINK_BYTES_PER_S),
            None => local(nvlink.or(pcie).ok_or_else(|| lacks("rate of a link between devices"))?),
        };
        let instance = machine.instance.as_ref();
        // Devices that a given rate connects need no other network.
        let instance_gpus = instance
            .filter(|_| !matches!(self.between, Some(Between::Rate(_))))
            .map(|instance| u64::from(instance.gpus));
        let devices_per_machine = self.devices_per_machine.or(instance_gpus);
        let network = match devices_per_machine.filter(|&count| count < devices) {
            Some(devices_per_machine) => {
                let of_instance = instance.and_then(|instance| instance.network.as_ref());
                let of_instance = of_instance.map(|network| network.gbit_s * 125e6 * LINK_EFFICIENCY);
                let bytes_per_s = self
                    .network
                    .or(of_instance)
                    .ok_or_else(|| Error::Figure { machine: machine.name.clone(), figure: "network rate" })?;
                Some(Network { link: other(bytes_per_s), devices_per_machine })
            }
            None => None,
        };
        let staging = match gpu {
            Some(_) if self.is_staged => {
                let pcie = pcie.ok_or_else(|| lacks("PCI Express rate"))?;
                Some(Staging { copy_bytes_per_s: pcie * 1e9 * LINK_EFFICIENCY })
            }
            _ => None,
        };
        let memory_bytes_per_s = match gpu {
            Some(gpu) if !self.is_staged => gpu.bandwidth_gb_s * 1e9 * MEMORY_EFFICIENCY,
            _ => HOST_MEMORY_BYTES_PER_S,
        };
        Ok(ExchangeModel { link, network, value_bytes: self.value_bytes, memory_bytes_per_s, staging })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    fn machine(name: &str) -> Machine {
        Catalogue::builtin().unwrap().find(name).unwrap()
    }

    #[test]
    fn links_are_those_of_the_catalogue_or_given() {
        let h100 = machine("h100-80gb-sxm");
        let model = |connection: Connection| connection.model(&h100, 8);
        // 450 GB/s in one direction.
        assert_eq!(model(Connection::default()).unwrap().link.bytes_per_s, 360e9);
        let pcie = Connection { between: Some(Between::Pcie), ..Connection::default() };
        let pcie = model(pcie).unwrap();
        assert!((50e9..51e9).contains(&pcie.link.bytes_per_s) && pcie.staging.is_none());
        let given = Connection { between: Some(Between::Rate(5e9)), ..Connection::default() };
        assert_eq!(model(given).unwrap().link, Link { bytes_per_s: 5e9, latency_s: DEFAULT_LATENCY_S });
        let staged = Connection { is_staged: true, latency_s: Some(1e-3), ..given };
        let staged = model(staged).unwrap();
        assert_eq!((staged.link.latency_s, staged.memory_bytes_per_s), (1e-3, HOST_MEMORY_BYTES_PER_S));
        assert!(staged.staging.is_some());
        // A GPU without NVLink uses PCI Express.
        let l4 = machine("l4-24gb");
        assert_eq!(
            Connection::default().model(&l4, 2).unwrap().link,
            Connection { between: Some(Between::Pcie), ..Connection::default() }.model(&l4, 2).unwrap().link
        );
        let refused = Connection { between: Some(Between::Nvlink), ..Connection::default() };
        let error = refused.model(&l4, 2).unwrap_err().to_string();
        assert_eq!(error, "the catalogue has no NVLink rate of l4-24gb");
    }

    #[test]
    fn instances_have_a_network_between_them() {
        let p4d = machine("p4d.24xlarge");
        assert_eq!(Connection::default().model(&p4d, 8).unwrap().network, None);
        let network = Connection::default().model(&p4d, 16).unwrap().network.unwrap();
        assert_eq!((network.devices_per_machine, network.link.bytes_per_s), (8, 40e9));
        // A GPU by its name is in a machine of any size.
        assert_eq!(Connection::default().model(&machine("a100-40gb"), 64).unwrap().network, None);
        let two = Connection { devices_per_machine: Some(2), ..Connection::default() };
        let error = two.model(&machine("a100-40gb"), 4).unwrap_err().to_string();
        assert_eq!(error, "the catalogue has no network rate of a100-40gb");
        let given = Connection { network: Some(1e9), ..two }.model(&machine("a100-40gb"), 4).unwrap();
        assert_eq!(given.network.unwrap().link.bytes_per_s, 1e9);
        // A given rate connects all devices.
        let rate = Connection { between: Some(Between::Rate(1e9)), ..Connection::default() };
        assert_eq!(rate.model(&p4d, 16).unwrap().network, None);
    }

    #[test]
    fn a_link_is_a_name_or_a_rate() {
        assert_eq!(Between::parse("NVLink"), Ok(Between::Nvlink));
        assert_eq!(Between::parse(" pcie "), Ok(Between::Pcie));
        assert_eq!(Between::parse("10Gbit/s"), Ok(Between::Rate(1.25e9)));
        for wrong in ["", "nvlink5", "10", "-1Gbit/s", "\u{1b}[31m"] {
            assert!(Between::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    /// The measured exchange that the constants come from.
    #[test]
    fn an_exchange_between_two_processes_takes_as_long_as_measured() {
        let cpu = machine("epyc-9354");
        let connection = Connection { is_staged: true, latency_s: Some(0.0), ..Connection::default() };
        let model = connection.model(&cpu, 2).unwrap();
        assert_eq!(model.staging, None);
        let seconds: f64 =
            model.rounds(2, f64::from(98 << 20)).map(|round| round.message_s + round.kernel_s).sum();
        assert!((seconds / 42e-3 - 1.0).abs() < 0.05, "{seconds}");
    }
}
