//! Published speeds of several GPUs, to judge forecasts by.

use crate::error::Result;
use crate::table::Table;
use serde::Serialize;

const FILE: &str = "scaling.csv";

/// A published table of speeds by number of devices, without them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedTable {
    /// The publication.
    pub source: String,
    /// The network, a built-in experiment.
    pub network: String,
    /// The device, by its name in the catalogue.
    pub machine: String,
    /// The value of `train.precision`.
    pub precision: String,
    /// Images per device.
    pub batch: u64,
    /// The link between devices, as in `--between`.
    pub between: String,
    /// The network between machines, and the devices of each, if there are several machines.
    #[serde(skip)]
    pub network_between: Option<(String, u64)>,
}

/// A published table: images per second by number of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedScaling {
    /// The table.
    pub table: PublishedTable,
    /// Numbers of devices, the first of which is 1, with the images per second of all.
    pub rows: Vec<(u64, f64)>,
}

/// The tables shipped with this crate.
///
/// # Errors
/// Only if the shipped file is invalid (covered by a test).
pub fn published_scaling() -> Result<Vec<PublishedScaling>> {
    parse(include_str!("../../data/scaling.csv"))
}

fn parse(text: &str) -> Result<Vec<PublishedScaling>> {
    let table = Table::parse(FILE, text)?;
    let names = ["source", "network", "machine", "precision", "batch", "between", "network_between"];
    let mut columns = [0; 7];
    for (column, name) in columns.iter_mut().zip(names) {
        *column = table.column(name)?;
    }
    let [per_machine, devices, speed] =
        [table.column("devices_per_machine")?, table.column("devices")?, table.column("images_per_second")?];
    let mut tables: Vec<PublishedScaling> = Vec::new();
    for row in table.rows() {
        let [source, network, machine, precision, _, between, network_between] =
            columns.map(|column| row.text(column).to_owned());
        let network_between = match network_between.as_str() {
            "" => None,
            _ => Some((network_between, row.count(per_machine)? as u64)),
        };
        let batch = row.count(columns[4])? as u64;
        let table = PublishedTable { source, network, machine, precision, batch, between, network_between };
        let entry = (row.count(devices)? as u64, row.count(speed)?);
        match tables.last_mut().filter(|last| entry.0 > 1 && last.table == table) {
            Some(last) => last.rows.push(entry),
            None if entry.0 == 1 => tables.push(PublishedScaling { table, rows: vec![entry] }),
            None => return Err(row.problem("a table must begin with one device".to_owned())),
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::scaling::Between;

    #[test]
    fn shipped_tables_are_complete() {
        let (tables, catalogue) = (published_scaling().unwrap(), Catalogue::builtin().unwrap());
        assert!(tables.len() > 20, "{}", tables.len());
        for PublishedScaling { table, rows } in tables {
            assert!(
                catalogue.find(&table.machine).is_ok() && Between::parse(&table.between).is_ok(),
                "{table:?}"
            );
            let counts: Vec<u64> = rows.iter().map(|row| row.0).collect();
            assert!(counts[0] == 1 && counts.len() > 1 && counts.is_sorted(), "{table:?}");
            assert!(counts.iter().all(|count| count.is_power_of_two()), "{table:?}");
            // No published speed-up is more than a few per cent above the number of devices.
            for (devices, speed) in &rows {
                let speed_up = speed / rows[0].1;
                assert!(speed_up > 0.4 * *devices as f64 && speed_up < 1.06 * *devices as f64, "{table:?}");
            }
        }
    }

    #[test]
    fn a_table_begins_with_one_device() {
        let heading = "source,network,machine,precision,batch,between,network_between,devices_per_machine,\
                       devices,images_per_second\n";
        let row = |devices: &str| format!("a page,resnet50,v100-16gb,f32,64,pcie,,,{devices},100\n");
        assert_eq!(parse(&format!("{heading}{}{}", row("1"), row("2"))).unwrap()[0].rows.len(), 2);
        let error = parse(&format!("{heading}{}", row("2"))).unwrap_err().to_string();
        assert!(error.contains("line 2: a table must begin with one device"), "{error}");
        assert!(parse(&format!("{heading}{}", row("many"))).is_err());
    }
}
