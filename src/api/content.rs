//! A body of known length, put together from bytes and files, read from disk while it is sent.

use std::io::{Error, ErrorKind, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::Stream;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio_util::io::ReaderStream;

/// Bytes on their way from the disk to the socket.
const BUFFER: usize = 1 << 16;

pub enum Part {
    Bytes(Vec<u8>),
    /// A file, opened when it is sent, and its length.
    File(PathBuf, u64),
    /// A file that may be replaced meanwhile, and its length.
    Opened(File, u64),
}

pub struct Content(pub Vec<Part>);

impl Content {
    pub fn size(&self) -> u64 {
        self.0.iter().map(Part::size).sum()
    }

    /// The bytes of this range, which lies within the size.
    pub fn stream(self, range: Range<u64>) -> impl Stream<Item = std::io::Result<Bytes>> {
        let (reader, mut writer) = tokio::io::duplex(BUFFER);
        tokio::spawn(async move {
            // A client that went away ends the writing; a body that ends early is seen by its Content-Length.
            if let Err(e) = self.write(range, &mut writer).await {
                tracing::info!(error = %e, "download not sent to its end");
            }
        });
        ReaderStream::with_capacity(reader, BUFFER)
    }

    pub async fn write(self, range: Range<u64>, out: &mut DuplexStream) -> std::io::Result<()> {
        let mut start = 0;
        for part in self.0 {
            let end = start + part.size();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                part.write(from - start..to - start, out).await?;
            }
            start = end;
        }
        Ok(())
    }
}

impl Part {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, size) | Self::Opened(_, size) => *size,
        }
    }

    async fn write(self, range: Range<u64>, out: &mut DuplexStream) -> std::io::Result<()> {
        let mut file = match self {
            Self::Bytes(bytes) => return out.write_all(&bytes[range.start as usize..range.end as usize]).await,
            Self::File(path, _) => File::open(path).await?,
            Self::Opened(file, _) => file,
        };
        file.seek(SeekFrom::Start(range.start)).await?;
        let wanted = range.end - range.start;
        let mut part = BufReader::with_capacity(4 * BUFFER, file.take(wanted));
        let sent = tokio::io::copy_buf(&mut part, out).await?;
        if sent == wanted { Ok(()) } else { Err(Error::new(ErrorKind::UnexpectedEof, "the file has shrunk")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn every_range_is_cut_from_the_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, b"defg").unwrap();
        let content = || {
            let file = Part::File(file.clone(), 4);
            Content(vec![Part::Bytes(b"abc".to_vec()), file, Part::Bytes(vec![]), Part::Bytes(b"hi".to_vec())])
        };
        let whole = b"abcdefghi";
        assert_eq!(content().size(), 9);
        for start in 0..=9 {
            for end in start..=9 {
                let mut stream = Box::pin(content().stream(start..end));
                let mut read = Vec::new();
                while let Some(bytes) = stream.next().await {
                    read.extend_from_slice(&bytes.unwrap());
                }
                assert_eq!(read, whole[start as usize..end as usize], "{start}..{end}");
            }
        }
        std::fs::write(&file, b"de").unwrap();
        let (_reader, mut writer) = tokio::io::duplex(64);
        assert!(content().write(0..9, &mut writer).await.is_err());
    }
}
