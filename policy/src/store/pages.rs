//! Which bytes of LMDB's file are in use, read by its layout (data version 1).
//!
//! ```text
//! meta pages 0 and 1 ─ the one of the newest transaction ─► roots of two trees: free pages, tables
//! branch page ─► pages below      leaf page ─► nodes: data, or where it lies:
//!                                              overflow pages, or the root of a table's own tree
//! page:  header (16) │ offsets of nodes ► lower │ not in use │ upper ◄ nodes
//! ```
//!
//! It knows what our tables use, and takes everything else for damage: no duplicates, no fixed sizes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

const MAGIC: u32 = 0xBEEF_C0DE;
const DATA_VERSION: u32 = 1;
const PAGE_HEADER: usize = 16;
const NODE_HEADER: usize = 8;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;
const FIXED_SIZE: u16 = 0x20;
const BIG_DATA: u16 = 0x01;
const TABLE: u16 = 0x02;
/// The root of a tree that has no page.
const NO_PAGE: u64 = u64::MAX;
/// No tree of 2^48 pages is deeper.
const DEEPEST: usize = 32;

/// Why a file can't be read by its layout.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// A page that is in use is not there.
    #[error("it is cut: {has} bytes are there, and at least {needs} are in use")]
    Cut {
        /// Bytes of the file.
        has: u64,
        /// Bytes that it must have at least.
        needs: u64,
    },
    /// It is not what LMDB writes.
    #[error("{0}")]
    Unknown(&'static str),
}

/// What a walk over the newest version of a file found.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
    /// The transaction that wrote this version.
    pub(crate) transaction: u64,
    /// Bytes within pages in use that hold nothing.
    pub(crate) gaps: Vec<Range<u64>>,
    /// Pages that nothing uses, as LMDB's own list has them.
    pub(crate) free: BTreeSet<u64>,
    /// The first page behind all of these. What lies there was written for a change that was cut off.
    pub(crate) end: u64,
}

/// One of the two meta pages.
#[derive(Debug, Clone, Copy)]
struct Meta {
    page_bytes: u64,
    free_root: u64,
    main_root: u64,
    last_page: u64,
    transaction: u64,
}

/// Finds out whether all that is in use lies within the file. LMDB maps it and would be killed by a
/// page that is not there.
pub(crate) fn check(file: &File) -> Result<(), Error> {
    loop {
        let meta = newest(file)?;
        // Pages are written before the meta page that names them, so their length is asked behind it.
        let length = file.metadata()?.len();
        // Free pages at the end need not be there: only then the pages themselves have to be asked.
        if length >= meta.last_page.saturating_add(1).saturating_mul(meta.page_bytes) {
            return Ok(());
        }
        let walked = walk(file, length, meta);
        // A writer beside this may have used a page anew meanwhile.
        if newest(file)?.transaction == meta.transaction {
            return walked.map(drop);
        }
    }
}

/// Walks over all that is in use.
pub(crate) fn survey(file: &File) -> Result<Survey, Error> {
    let meta = newest(file)?;
    let length = file.metadata()?.len();
    let Walk { live, gaps, free, .. } = walk(file, length, meta)?;
    // Each page is in use or on the list, or this is not the layout that is known here.
    let told = |page: &u64| live.contains(page) != free.contains(page);
    let known = (2..=meta.last_page).all(|page| told(&page));
    if !known || free.iter().any(|page| !(2..=meta.last_page).contains(page)) {
        return Err(Error::Unknown("a page is neither in use nor free, or both"));
    }
    let Meta { page_bytes, transaction, .. } = meta;
    Ok(Survey { page_bytes, transaction, gaps, free, end: meta.last_page + 1 })
}

fn walk(file: &File, length: u64, meta: Meta) -> Result<Walk<'_>, Error> {
    let page_bytes = meta.page_bytes;
    let (live, gaps, free) = Default::default();
    let mut walk = Walk { file, length, page_bytes, last_page: meta.last_page, live, gaps, free };
    walk.tree(meta.free_root, Tree::Free, 0)?;
    walk.tree(meta.main_root, Tree::Tables, 0)?;
    Ok(walk)
}

fn newest(file: &File) -> Result<Meta, Error> {
    let length = file.metadata()?.len();
    // The first meta page tells the size of pages, and so where the second one is.
    let first = meta(file, length, 0)?;
    let second = meta(file, length, first.page_bytes)?;
    if second.page_bytes != first.page_bytes {
        return Err(Error::Unknown("its meta pages differ in the size of pages"));
    }
    Ok(if first.transaction > second.transaction { first } else { second })
}

fn meta(file: &File, length: u64, at: u64) -> Result<Meta, Error> {
    let mut page = [0; PAGE_HEADER + 136];
    read(file, length, at, &mut page)?;
    let (header, body) = page.split_at(PAGE_HEADER);
    if u16_at(header, 10)? & META == 0 || u32_at(body, 0)? != MAGIC {
        return Err(Error::Unknown("it is no LMDB file"));
    }
    if u32_at(body, 4)? != DATA_VERSION {
        return Err(Error::Unknown("its data version is not known"));
    }
    let page_bytes = u64::from(u32_at(body, 24)?);
    if !page_bytes.is_power_of_two() || !(256..=65_536).contains(&page_bytes) {
        return Err(Error::Unknown("its size of pages is not possible"));
    }
    Ok(Meta {
        page_bytes,
        free_root: u64_at(body, 24 + 40)?,
        main_root: u64_at(body, 72 + 40)?,
        last_page: u64_at(body, 120)?,
        transaction: u64_at(body, 128)?,
    })
}

/// What the leaves of a tree hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    /// Lists of free pages.
    Free,
    /// Tables, each a tree of its own.
    Tables,
    /// Records.
    Records,
}

struct Walk<'f> {
    file: &'f File,
    length: u64,
    page_bytes: u64,
    last_page: u64,
    live: BTreeSet<u64>,
    gaps: Vec<Range<u64>>,
    free: BTreeSet<u64>,
}

impl Walk<'_> {
    fn tree(&mut self, root: u64, tree: Tree, depth: usize) -> Result<(), Error> {
        if root == NO_PAGE {
            return Ok(());
        }
        if depth > DEEPEST {
            return Err(Error::Unknown("a tree is too deep"));
        }
        let page = self.page(root)?;
        let flags = u16_at(&page, 10)?;
        let (lower, upper) = (usize::from(u16_at(&page, 12)?), usize::from(u16_at(&page, 14)?));
        if lower < PAGE_HEADER || lower > upper || upper > page.len() {
            return Err(Error::Unknown("the bounds of a page are not possible"));
        }
        let start = root * self.page_bytes;
        self.gaps.push(start + lower as u64..start + upper as u64);
        let offsets = page.get(PAGE_HEADER..lower).unwrap_or_default();
        for offset in offsets.chunks_exact(2) {
            let at = u16_at(offset, 0)?;
            let node = page.get(usize::from(at)..).unwrap_or_default();
            match flags & (BRANCH | LEAF | OVERFLOW | META | FIXED_SIZE) {
                BRANCH => {
                    let below =
                        u64::from(u32_at(node, 0)?) | u64::from(u16_at(node, 4)?) << u32::BITS;
                    self.tree(below, tree, depth + 1)?;
                }
                LEAF => self.leaf(start + u64::from(at), node, tree, depth)?,
                _ => return Err(Error::Unknown("a page of a tree is of another kind")),
            }
        }
        Ok(())
    }

    /// Takes in a node of a leaf, which begins there in the file.
    fn leaf(&mut self, at: u64, node: &[u8], tree: Tree, depth: usize) -> Result<(), Error> {
        let length = u64::from(u32_at(node, 0)?);
        let start = NODE_HEADER + usize::from(u16_at(node, 6)?);
        let inline = node.get(start..).unwrap_or_default();
        match (u16_at(node, 4)?, tree) {
            (0, Tree::Records) => Ok(()),
            (0, Tree::Free) => {
                let list = inline.get(..usize::try_from(length).unwrap_or(usize::MAX));
                self.list(at + start as u64, list.ok_or(SHORT)?)
            }
            (BIG_DATA, Tree::Records | Tree::Free) => {
                let first = u64_at(inline, 0)?;
                let at = self.overflow(first, length)?;
                if tree == Tree::Free {
                    let mut list = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
                    read(self.file, self.length, at, &mut list)?;
                    self.list(at, &list)?;
                }
                Ok(())
            }
            (TABLE, Tree::Tables) => self.tree(u64_at(inline, 40)?, Tree::Records, depth + 1),
            (_, _) => Err(Error::Unknown("a node is of a kind that is not used here")),
        }
    }

    /// Takes in the pages of a long value; answers where it begins.
    fn overflow(&mut self, first: u64, length: u64) -> Result<u64, Error> {
        let page = self.page(first)?;
        let pages = u64::from(u32_at(&page, 12)?);
        let start = first * self.page_bytes + PAGE_HEADER as u64;
        let end = first.saturating_add(pages).saturating_mul(self.page_bytes);
        let used = start.saturating_add(length);
        if u16_at(&page, 10)? & OVERFLOW == 0 || pages == 0 || used > end {
            return Err(Error::Unknown("a long value does not fit its pages"));
        }
        for further in first + 1..first + pages {
            self.take(further)?;
        }
        self.gaps.push(used..end);
        Ok(start)
    }

    /// A list of free pages, which begins there in the file: how many, then their numbers. LMDB may
    /// leave room behind them.
    fn list(&mut self, at: u64, list: &[u8]) -> Result<(), Error> {
        let (count, numbers) = (u64_at(list, 0)?, list.get(8..).unwrap_or_default());
        let used = count.checked_mul(8).and_then(|bytes| usize::try_from(bytes).ok());
        let used = used.filter(|used| *used <= numbers.len()).ok_or(SHORT)?;
        for number in numbers.get(..used).unwrap_or_default().chunks_exact(8) {
            if !self.free.insert(u64_at(number, 0)?) {
                return Err(Error::Unknown("a page is free twice"));
            }
        }
        self.gaps.push(at + 8 + used as u64..at + list.len() as u64);
        Ok(())
    }

    fn page(&mut self, number: u64) -> Result<Vec<u8>, Error> {
        self.take(number)?;
        let mut page = vec![0; usize::try_from(self.page_bytes).unwrap_or_default()];
        read(self.file, self.length, number * self.page_bytes, &mut page)?;
        if u64_at(&page, 0)? != number {
            return Err(Error::Unknown("a page has another number"));
        }
        Ok(page)
    }

    /// Notes that a page is in use, and that it is there.
    fn take(&mut self, number: u64) -> Result<(), Error> {
        if number < 2 || number > self.last_page {
            return Err(Error::Unknown("a page in use is none of the file"));
        }
        let needs = (number + 1).saturating_mul(self.page_bytes);
        if needs > self.length {
            return Err(Error::Cut { has: self.length, needs });
        }
        if !self.live.insert(number) {
            return Err(Error::Unknown("a page is in use twice"));
        }
        Ok(())
    }
}

fn read(file: &File, length: u64, at: u64, into: &mut [u8]) -> Result<(), Error> {
    let needs = at.saturating_add(into.len() as u64);
    if needs > length {
        return Err(Error::Cut { has: length, needs });
    }
    Ok(file.read_exact_at(into, at)?)
}

const SHORT: Error = Error::Unknown("a page ends too early");

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Error> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(SHORT)?;
    Ok(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Error> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(SHORT)?;
    Ok(u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Error> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(SHORT)?;
    Ok(u64::from_ne_bytes(*bytes))
}
