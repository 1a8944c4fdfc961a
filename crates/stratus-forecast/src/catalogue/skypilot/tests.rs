use super::*;
use crate::catalogue::{Catalogue, price_age_days};
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

/// Writes the files of clouds below `~/.sky/catalogs/v8`.
fn folder(clouds: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (cloud, text) in clouds {
        let path = folder.path().join("v8").join(cloud);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("vms.csv"), text).unwrap();
    }
    folder
}

fn read_all(clouds: &[(&str, &str)]) -> SkyPilotCatalogue {
    read(folder(clouds).path(), &Catalogue::builtin().unwrap().gpus).unwrap()
}

fn info(name: &str, mib: u32) -> String {
    format!("\"{{'Gpus': [{{'Name': '{name}', 'Count': 1, 'MemoryInfo': {{'SizeInMiB': {mib}}}}}]}}\"")
}

#[test]
fn each_type_has_its_cheapest_region() {
    let text = format!(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n\
         big,H100,8.0,128.0,1600,23.60,north,{h100},10.5\n\
         big,H100,8.0,128.0,1600,22.00,south,{h100},11\n\
         none,H100,1.0,16,200,,north,{h100},\n\
         cpu,,,4.0,16.0,0.2,north,,\n",
        h100 = info("H100", 81_920)
    );
    let catalogue = read_all(&[("nebius", &text)]);
    assert_eq!((catalogue.damaged_rows, catalogue.instances.len()), (0, 1));
    let instance = &catalogue.instances[0];
    let found = (instance.name.as_str(), instance.cloud.as_str(), instance.gpu.as_str(), instance.gpus);
    assert_eq!(found, ("big", "nebius", "h100-80gb-sxm", 8));
    assert_eq!((instance.vcpus, instance.ram_gib), (Some(128), Some(1600.0)));
    let price = |spot| instance.price(spot).map(|price| (price.per_hour, price.is_spot, price.region));
    assert_eq!(price(false), Some((22.0, false, Some("south"))));
    assert_eq!(price(true), Some((10.5, true, Some("north"))));
}

#[test]
fn accelerators_are_told_apart_by_form_and_memory() {
    let text = format!(
        "Price,Region,InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo\n\
         1,r,h100_sxm,8,8,H100,1,{sxm}\n\
         1,r,h100_pcie,8,8,H100,1,{sxm}\n\
         1,r,a100,8,8,A100-80GB,2,\"{{\"\"Name\"\": \"\"A100 PCIe\"\", \"\"SizeInMiB\"\": 163840}}\"\n\
         1,r,small,8,8,A100-80GB,1,\"{{'SizeInMiB': 80}}\"\n\
         1,r,v100,8,8,V100,1,{v100}\n\
         1,r,tpu,8,8,tpu-v6e,1,\n\
         1,r,alias,8,8,rtxa6000,1,\n",
        sxm = info("H100", 81_920),
        v100 = info("V100", 32_768)
    );
    let catalogue = read_all(&[("cloud", &text)]);
    let found: Vec<(&str, &str)> =
        catalogue.instances.iter().map(|row| (row.name.as_str(), row.gpu.as_str())).collect();
    assert_eq!(
        found,
        [
            ("a100", "a100-80gb-pcie"),
            ("alias", "rtx-a6000"),
            ("h100_pcie", "h100-80gb-pcie"),
            ("h100_sxm", "h100-80gb-sxm"),
            ("small", "a100-80gb"),
        ]
    );
    // A V100 of 32 GiB is not taken for one of 16 GiB.
    assert_eq!(catalogue.unknown_accelerators.iter().collect::<Vec<_>>(), ["V100", "tpu-v6e"]);
}

#[test]
fn google_gpus_are_added_to_their_machines() {
    let text = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,\
                AvailabilityZone,Price,SpotPrice\n\
                a2-highgpu-2g,24,170,,,,us,us-a,1.5,0.75\n\
                a2-highgpu-2g,24,170,,,,eu,eu-a,1.0,0.5\n\
                a2-ultragpu-1g,12,170,,,,us,us-a,1.0,0.5\n\
                g2-standard-24,24,96,,,,us,us-a,0.5,\n\
                n1-standard-8,8,30,,,,us,us-a,0.4,0.1\n\
                ,,,A100,2.0,,us,us-a,5.0,2.0\n\
                ,,,A100,1.0,,eu,eu-a,2.5,1.0\n\
                ,,,L4,2.0,,us,us-a,1.25,0.5\n";
    let catalogue = read_all(&[("gcp", text)]);
    let found: Vec<_> = catalogue
        .instances
        .iter()
        .map(|row| (row.name.as_str(), row.gpus, row.on_demand_per_hour, row.spot_per_hour))
        .collect();
    // Without the price of its GPU, a machine is left out: eu-a has no price of two A100.
    assert_eq!(found, [("a2-highgpu-2g", 2, Some(6.5), Some(2.75)), ("g2-standard-24", 2, Some(1.75), None)]);
    assert_eq!(catalogue.instances[0].region.as_deref(), Some("us"));
}

#[test]
fn damaged_rows_are_named_and_left_out() {
    let heading = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region";
    let text = format!(
        "{heading}\na,T4,1,4,16,0.5,r\nb,T4,1,4,16,half,r\nc,T4,1,4,16\nd,T4,-1,4,16,1,r\ne,T4,,4,16,1,r\n\
         f;rm,T4,1,4,16,1,r\n,,,4,16,1,r\ng,T4,1.5,4,16,1,r\n"
    );
    let catalogue = read_all(&[("aws", &text)]);
    assert_eq!(catalogue.instances.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!((catalogue.damaged_rows, catalogue.problems.len()), (7, MAX_PROBLEMS));
    let ends = |at: usize, end: &str| {
        assert!(catalogue.problems[at].ends_with(end), "{:?}", catalogue.problems);
    };
    ends(0, "vms.csv, line 3: Price must be a number from 0 to 100000, but is `half`");
    ends(1, "vms.csv, line 4: it has 5 fields, but the header has 7");
    ends(2, "line 5: AcceleratorCount must be a number from 0 to 1024, but is `-1`");
    ends(3, "line 6: AcceleratorCount must be above 0");

    let problem = |text: &str| {
        let gpus = Catalogue::builtin().unwrap().gpus;
        read(folder(&[("aws", text)]).path(), &gpus).unwrap_err().to_string()
    };
    assert!(problem("InstanceType,Price\n").ends_with("missing column `AcceleratorName`"));
    assert!(problem("").contains("missing column"));
    let empty = tempfile::tempdir().unwrap();
    assert!(read(empty.path(), &[]).unwrap_err().to_string().contains("it has 0 clouds"));
}

#[test]
fn instances_of_its_clouds_replace_the_built_in_ones() {
    let heading = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region";
    let aws = format!("{heading}\ng5.xlarge,A10G,1,4,16,0.9,us-west-2\n");
    let lambda = format!("{heading}\ng5.xlarge,A10G,1,4,16,0.1,r\n");
    let folder = folder(&[("aws", &aws), ("lambda", &lambda), ("v-empty", heading)]);
    let file = folder.path().join("v8/aws/vms.csv");
    // 2026-10-01.
    let modified = UNIX_EPOCH + Duration::from_secs(20_727 * 86_400);
    fs::File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
    let builtin = Catalogue::builtin().unwrap();
    let skypilot = read(folder.path(), &builtin.gpus).unwrap();
    assert_eq!(skypilot.clouds.iter().collect::<Vec<_>>(), ["aws", "lambda"]);
    let catalogue = builtin.with_skypilot(&skypilot);
    let of = |cloud: &'static str| catalogue.instances.iter().filter(move |row| row.cloud == cloud);
    let aws: Vec<_> = of("aws").collect();
    assert_eq!((aws.len(), aws[0].on_demand_per_hour, aws[0].date.as_str()), (1, Some(0.9), "2026-10-01"));
    assert_eq!(price_age_days(&aws[0].date, 20_727 + 91), Some(91));
    // The same name of another cloud is ambiguous: the first is kept.
    assert_eq!(of("lambda").count(), 0);
    assert!(of("azure").count() > 0);
}

#[test]
fn the_newest_version_is_read() {
    let folder = folder(&[("aws", "")]);
    let text =
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region\na,T4,1,4,16,1,r\n";
    fs::create_dir_all(folder.path().join("v10/aws")).unwrap();
    fs::write(folder.path().join("v10/aws/vms.csv"), text).unwrap();
    let catalogue = read(folder.path(), &Catalogue::builtin().unwrap().gpus).unwrap();
    assert!(catalogue.folder.ends_with("v10") && catalogue.instances.len() == 1);
}
