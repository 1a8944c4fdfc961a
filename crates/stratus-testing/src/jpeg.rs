//! Synthetic JPEG files (ITU-T T.81) of any sampling and scan order, with random coefficients.

/// The description of a synthetic file.
#[derive(Clone, Debug)]
pub struct SyntheticJpeg {
    /// The number of rows.
    pub height: u16,
    /// The number of columns.
    pub width: u16,
    /// The horizontal and vertical sampling factors of each component, from 1 to 4.
    pub factors: Vec<(u8, u8)>,
    /// The order of the scans.
    pub scans: ScanOrder,
    /// The number of minimum coded units between restart markers; 0 for none.
    pub restart: u16,
    /// The colour transform in the Adobe segment: 0 RGB or CMYK, 1 YCbCr, 2 YCCK. `None` writes no segment,
    /// for grey, YCbCr or CMYK.
    pub adobe: Option<u8>,
    /// The seed of the coefficients.
    pub seed: u64,
}

/// The order of a file's scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOrder {
    /// One interleaved scan.
    Interleaved,
    /// One scan per component.
    NonInterleaved,
    /// Progressive scans: DC without the last bit, AC of each component, the last bit of DC.
    Progressive,
}

/// The coefficients of a block, whose order does not matter, since they are random.
type Block = [i32; 64];

struct Component {
    factors: (usize, usize),
    /// The rows and columns of blocks, without the padding of the last MCU.
    size: [usize; 2],
    stride: usize,
    blocks: Vec<Block>,
}

/// The random number generator SplitMix64.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, bound: u64) -> i32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound) as i32
    }
}

impl SyntheticJpeg {
    /// Encodes the file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut draws = SplitMix64(self.seed);
        let max_factor =
            |along: fn(&(u8, u8)) -> u8| usize::from(self.factors.iter().map(along).max().unwrap_or(1));
        let (across, down) = (max_factor(|factors| factors.0), max_factor(|factors| factors.1));
        let units =
            [usize::from(self.height).div_ceil(8 * down), usize::from(self.width).div_ceil(8 * across)];
        let mut components: Vec<Component> = Vec::new();
        for &(h, v) in &self.factors {
            let (h, v) = (usize::from(h), usize::from(v));
            let blocks_of = |length: u16, factor: usize, max: usize| {
                (usize::from(length) * factor).div_ceil(max).div_ceil(8)
            };
            let stride = units[1] * h;
            let blocks = (0..units[0] * v * stride).map(|_| block(&mut draws)).collect();
            let size = [blocks_of(self.height, v, down), blocks_of(self.width, h, across)];
            components.push(Component { factors: (h, v), size, stride, blocks });
        }
        let mut file = vec![0xff, 0xd8];
        if let Some(transform) = self.adobe {
            segment(&mut file, 0xee, &[b"Adobe\0\x64\0\0\0\0".as_slice(), &[transform]].concat());
        }
        segment(&mut file, 0xdb, &[&[0], [3; 64].as_slice()].concat());
        let [high, low] = self.height.to_be_bytes();
        let [left, right] = self.width.to_be_bytes();
        let mut frame = vec![8, high, low, left, right, self.factors.len() as u8];
        for (index, (h, v)) in self.factors.iter().enumerate() {
            frame.extend([index as u8 + 1, (h << 4) | v, 0]);
        }
        segment(&mut file, if self.scans == ScanOrder::Progressive { 0xc2 } else { 0xc0 }, &frame);
        // Huffman codes of constant length: 4 bits for DC sizes, 8 bits for AC runs and sizes.
        segment(
            &mut file,
            0xc4,
            &[&[0, 0, 0, 0, 12], [0; 12].as_slice(), &(0..12).collect::<Vec<u8>>()].concat(),
        );
        let mut lengths = [0; 16];
        lengths[7] = AC_SYMBOLS.len() as u8;
        segment(&mut file, 0xc4, &[&[0x10], lengths.as_slice(), &AC_SYMBOLS].concat());
        if self.restart > 0 {
            segment(&mut file, 0xdd, &self.restart.to_be_bytes());
        }
        let all: Vec<usize> = (0..components.len()).collect();
        let scan = |file: &mut Vec<u8>, selected: &[usize], part| {
            self.scan(file, &components, selected, units, part);
        };
        match self.scans {
            ScanOrder::Interleaved => scan(&mut file, &all, ScanPart::All),
            ScanOrder::NonInterleaved => all.iter().for_each(|&one| scan(&mut file, &[one], ScanPart::All)),
            ScanOrder::Progressive => {
                scan(&mut file, &all, ScanPart::Dc);
                all.iter().for_each(|&one| scan(&mut file, &[one], ScanPart::Ac));
                scan(&mut file, &all, ScanPart::DcRefinement);
            }
        }
        file.extend([0xff, 0xd9]);
        file
    }

    fn scan(
        &self,
        file: &mut Vec<u8>,
        components: &[Component],
        selected: &[usize],
        units: [usize; 2],
        part: ScanPart,
    ) {
        let mut header = vec![selected.len() as u8];
        selected.iter().for_each(|&one| header.extend([one as u8 + 1, 0]));
        header.extend(match part {
            ScanPart::All => [0, 63, 0],
            ScanPart::Dc => [0, 0, 1],
            ScanPart::Ac => [1, 63, 0],
            ScanPart::DcRefinement => [0, 0, 0x10],
        });
        segment(file, 0xda, &header);
        // The blocks of each MCU. A scan of one component has one block per MCU.
        let units_of_blocks: Vec<Vec<(usize, usize)>> = match selected {
            &[one] => {
                let Component { size: [rows, columns], stride, .. } = components[one];
                let positions = (0..rows).flat_map(|y| (0..columns).map(move |x| y * stride + x));
                positions.map(|at| vec![(one, at)]).collect()
            }
            _ => (0..units[0] * units[1])
                .map(|unit| {
                    let (y, x) = (unit / units[1], unit % units[1]);
                    let blocks = selected.iter().flat_map(|&one| {
                        let Component { factors: (h, v), stride, .. } = components[one];
                        let positions = (0..v).flat_map(move |row| (0..h).map(move |column| (row, column)));
                        positions.map(move |(row, column)| (one, (y * v + row) * stride + x * h + column))
                    });
                    blocks.collect()
                })
                .collect(),
        };
        let mut bits = BitWriter::default();
        let mut previous_dc = vec![0; components.len()];
        for (index, unit) in units_of_blocks.iter().enumerate() {
            if self.restart > 0 && index > 0 && index % usize::from(self.restart) == 0 {
                bits.flush(file);
                file.extend([0xff, 0xd0 + ((index / usize::from(self.restart) - 1) % 8) as u8]);
                previous_dc.fill(0);
            }
            for &(one, at) in unit {
                let block = &components[one].blocks[at];
                match part {
                    ScanPart::DcRefinement => bits.put(file, block[0] as u32 & 1, 1),
                    ScanPart::Ac => encode_ac(&mut bits, file, block),
                    ScanPart::All | ScanPart::Dc => {
                        let dc = if part == ScanPart::Dc { block[0] >> 1 } else { block[0] };
                        let size = magnitude_bits(dc - previous_dc[one]);
                        bits.put(file, size, 4);
                        bits.put_value(file, dc - previous_dc[one], size);
                        previous_dc[one] = dc;
                        if part == ScanPart::All {
                            encode_ac(&mut bits, file, block);
                        }
                    }
                }
            }
        }
        bits.flush(file);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanPart {
    All,
    Dc,
    Ac,
    DcRefinement,
}

/// A block of a random DC coefficient and a few AC coefficients.
fn block(draws: &mut SplitMix64) -> Block {
    let mut block = [0; 64];
    block[0] = draws.below(500) - 250;
    for _ in 0..draws.below(6) {
        block[1 + draws.below(63) as usize] = draws.below(121) - 60;
    }
    block
}

/// The AC symbols: the end of a block, a run of zeros with the size of the next coefficient, and a run of 16
/// zeros.
const AC_SYMBOLS: [u8; 114] = {
    let mut symbols = [0; 114];
    let mut at = 1;
    while at < 113 {
        symbols[at] = (((at - 1) / 7) << 4) as u8 | ((at - 1) % 7 + 1) as u8;
        at += 1;
    }
    symbols[113] = 0xf0;
    symbols
};

fn encode_ac(bits: &mut BitWriter, file: &mut Vec<u8>, block: &Block) {
    let mut run = 0;
    for &value in &block[1..] {
        if value == 0 {
            run += 1;
            continue;
        }
        while run > 15 {
            bits.put(file, 113, 8);
            run -= 16;
        }
        let size = magnitude_bits(value);
        bits.put(file, 1 + run * 7 + size - 1, 8);
        bits.put_value(file, value, size);
        run = 0;
    }
    if run > 0 {
        bits.put(file, 0, 8);
    }
}

/// The number of bits of the magnitude of a value.
fn magnitude_bits(value: i32) -> u32 {
    32 - value.unsigned_abs().leading_zeros()
}

fn segment(file: &mut Vec<u8>, marker: u8, content: &[u8]) {
    file.extend([0xff, marker]);
    file.extend((content.len() as u16 + 2).to_be_bytes());
    file.extend(content);
}

/// A writer of single bits, with the bits of the incomplete byte.
#[derive(Default)]
struct BitWriter {
    byte: u32,
    count: u32,
}

impl BitWriter {
    fn put(&mut self, file: &mut Vec<u8>, value: u32, count: u32) {
        for at in (0..count).rev() {
            self.byte = (self.byte << 1) | ((value >> at) & 1);
            self.count += 1;
            if self.count == 8 {
                file.push(self.byte as u8);
                // A data byte 0xff is followed by 0.
                file.extend((self.byte == 0xff).then_some(0));
                (self.byte, self.count) = (0, 0);
            }
        }
    }

    fn put_value(&mut self, file: &mut Vec<u8>, value: i32, size: u32) {
        let stored = if value < 0 { value - 1 } else { value };
        self.put(file, stored as u32, size);
    }

    fn flush(&mut self, file: &mut Vec<u8>) {
        while self.count > 0 {
            self.put(file, 1, 1);
        }
    }
}
