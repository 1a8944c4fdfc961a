use super::*;

const FILE: &str = "\
<?xml version=\"1.0\"?>
<!-- times of layers -->
<pytorch_configuration>
  <input>
    <path>/data/imagenet</path>
    <classes>
      <class>n01440764</class>
      <class>n01443537</class>
      <class>n01484850</class>
    </classes>
  </input>
  <remote_location user=\"anna\" host=\"lab.example.org\">
    <path>/srv/imagenet</path>
    <key>/home/anna/.ssh/id_lab</key>
  </remote_location>
  <network_type>AlexNet</network_type>
  <num_classes>2</num_classes>
  <images_per_class>500</images_per_class>
  <epochs_number>3</epochs_number>
  <batch_size>64</batch_size>
  <momentum>0.9</momentum>
  <j>4</j>
  <gpus_number>0</gpus_number>
  <profile>true</profile>
  <only_load>false</only_load>
</pytorch_configuration>
";

fn parse(text: &str) -> Result<XmlExperiment, String> {
    XmlExperiment::parse(text, Path::new("lab.xml")).map_err(|error| error.to_string())
}

fn body(body: &str) -> Result<XmlExperiment, String> {
    parse(&format!("<tensorflow_configuration>\n{body}\n</tensorflow_configuration>"))
}

#[test]
fn converts_to_toml_of_the_same_experiment() {
    let read = parse(FILE).unwrap();
    let expected = "\
[data]
name = \"folder\"
classes = \"lab.classes.txt\"
path = \"/data/imagenet\"
images_per_class = 500
workers = 4

[model]
name = \"alexnet\"

[train]
epochs = 3
batch_size = 64
device = \"cpu\"

[optimiser]
momentum = 0.9

# lab.classes.txt lists the 2 classes, one per line.
# The data are at sftp://anna@lab.example.org/srv/imagenet: fetch them with `stratus data sync \
sftp://anna@lab.example.org/srv/imagenet FOLDER`.
# The SSH key is /home/anna/.ssh/id_lab: set it in ~/.ssh/config (IdentityFile).
# lab.xml:24: profile is ignored: every iteration is timed, layer by layer.
";
    let toml = read.to_toml().unwrap();
    assert_eq!(toml, expected, "\n{toml}");
    assert_eq!(read.classes().unwrap(), ["n01440764", "n01443537"]);
    let direct = read.experiment(&[]).unwrap();
    assert_eq!(direct, Experiment::from_toml(&toml, Path::new("lab.toml")).unwrap());
    // It is applied to the built-in experiment of the network, like a file.
    assert_eq!((direct.model.name.as_str(), direct.train.epochs), ("alexnet", 3));
    assert_eq!(direct.optimiser.weight_decay, Experiment::builtin("alexnet").unwrap().optimiser.weight_decay);
}

#[test]
fn overrides_accept_xml_and_configuration_keys() {
    let mut read = parse(FILE).unwrap();
    read.set("batch_size=128,train.epochs=7,classes=a,b,num_classes=2").unwrap();
    assert_eq!(read.classes().unwrap(), ["a", "b"]);
    let experiment = read.experiment(&[("train.seed".into(), "5".into())]).unwrap();
    assert_eq!((experiment.train.batch_size, experiment.train.epochs, experiment.train.seed), (128, 7, 5));
    assert!(read.to_toml().unwrap().contains("batch_size = 128\n"));
    let refused = |settings: &str| parse(FILE).unwrap().set(settings).unwrap_err().to_string();
    assert_eq!(refused("batch_sise=3"), "--set: unknown key `batch_sise`, did you mean `batch_size`?");
    assert_eq!(refused("64"), "--set: `64` is not key=value");
    let mut wrong = parse(FILE).unwrap();
    wrong.set("train.epoch=3").unwrap();
    assert!(wrong.experiment(&[]).unwrap_err().to_string().contains("unknown key `train.epoch`"));
}

#[test]
fn unknown_keys_are_reported_with_their_lines() {
    let read =
        body("<epoch_number>3</epoch_number>\n<network_type>vgg11</network_type>\n<x a='1'/>").unwrap();
    let unknown = "line 2: unknown key `epoch_number`, did you mean `epochs_number`?\n\
                   line 4: unknown key `a`";
    assert_eq!(read.check_known().unwrap_err().to_string(), format!("lab.xml: {unknown}"));
    assert!(read.experiment(&[]).is_err());
    assert!(read.to_toml().unwrap().contains("# lab.xml: line 4: unknown key `a`\n"));
    // An invalid value is reported with its line too.
    let read = body("<network_type>vgg11</network_type>\n<batch_size>many</batch_size>").unwrap();
    let error = read.experiment(&[]).unwrap_err().to_string();
    assert!(error.starts_with("lab.xml:3: `train.batch_size` expects "), "{error}");
    let error = body("<j>2</j>").unwrap().experiment(&[]).unwrap_err().to_string();
    assert_eq!(error, "lab.xml: `model.name` is not set");
}

#[test]
fn rejects_unsupported_values() {
    let refused = |text: &str| body(text).unwrap_err();
    assert_eq!(refused("<gpus_number>2</gpus_number>"), "lab.xml:2: `gpus_number` is 2");
    assert_eq!(refused("<gpus_number>two</gpus_number>"), "lab.xml:2: `gpus_number` is `two`");
    assert_eq!(refused("<only_load>true</only_load>"), "lab.xml:2: `only_load` is `true`");
    assert_eq!(refused("<num_classes>-1</num_classes>"), "lab.xml:2: `num_classes` is `-1`");
    let few = body("<classes>a b</classes><num_classes>3</num_classes>").unwrap();
    let error = few.classes().unwrap_err().to_string();
    assert_eq!(error, "lab.xml: num_classes is 3, but 2 classes are listed");
    assert_eq!(body("<remote><path>/srv/x</path></remote>").unwrap().remote().as_deref(), Some("/srv/x"));
    let flat = "<remote_host>h</remote_host><remote_port>2222</remote_port><remote_path>x</remote_path>";
    assert_eq!(body(flat).unwrap().remote().as_deref(), Some("sftp://h:2222/x"));
    assert_eq!(body("<remote><host>h</host></remote>").unwrap().remote(), None);
}

#[test]
fn rejects_other_files_and_bounds_their_size() {
    let refused = |text: &str| parse(text).unwrap_err();
    assert_eq!(
        refused("<configuration/>"),
        "lab.xml:1: unsupported root element `configuration`; expected pytorch_configuration or \
         tensorflow_configuration"
    );
    for text in ["", "no XML", "<pytorch_configuration>", "<pytorch_configuration><a></b>", "<a/><b/>"] {
        assert!(refused(text).starts_with("lab.xml:"), "{text}");
    }
    // Expanding entities and deep nesting are rejected.
    let bomb = "<!DOCTYPE a [<!ENTITY b \"bbbbbbbbbb\"><!ENTITY c \"&b;&b;&b;\">]>\
                <pytorch_configuration><j>&c;</j></pytorch_configuration>";
    assert!(refused(bomb).contains("DTD"), "{}", refused(bomb));
    let deep = |levels: usize| {
        let (open, close) = ("<g>".repeat(levels), "</g>".repeat(levels));
        format!("<pytorch_configuration>{open}<j>2</j>{close}</pytorch_configuration>")
    };
    assert!(parse(&deep(10)).unwrap().unknown().is_empty());
    assert!(refused(&deep(20)).contains("nested deeper than 16"), "{}", refused(&deep(20)));
    refused(&deep(15_000));
    let many = format!("<pytorch_configuration>{}</pytorch_configuration>", "<j>1</j>".repeat(30_000));
    refused(&many);
}
