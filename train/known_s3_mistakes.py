"""Mistakes with S3, and with records that are read from there; see train/known_mistakes.py."""

from train.mistake import Mistake

S3 = (
    Mistake(
        "PermanentRedirect",
        "the bucket is in another region than the job reads from: `[provision] region` has to be the bucket's",
        pattern=r"\bPermanentRedirect\b",
    ),
    Mistake(
        "TemporaryRedirect",
        "S3 sends reads of this bucket elsewhere, as it does for a new bucket, or one of another region: try again "
        "later, or see `[provision] region`",
        pattern=r"\bTemporaryRedirect\b",
    ),
    Mistake(
        "AuthorizationHeaderMalformed",
        "the bucket is in another region than the job reads from: `[provision] region` has to be the bucket's",
        pattern=r"\bAuthorizationHeaderMalformed\b",
    ),
    Mistake(
        "compile with DMLC_USE_S3=1",
        'this MXNet cannot open s3:// by itself: set `[data] mode = "auto"`, by which workers read and save '
        "there; a process that is no worker, or runs another Python than the nodes' own, cannot use s3://",
    ),
    Mistake(
        "No such file or directory: 's3://",
        "{path}: Python's open() does not know s3://. For MXNet's own code set `[data] mode = \"stage\"`: "
        "ImageRecordDataset, RecordFileDataset, MXIndexedRecordIO and ImageIter, with their .idx files, then read it; "
        "other Python code has to fetch the file itself, with boto3, say",
        pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>s3://[^']{1,200})'",
    ),
    Mistake(
        "NoSuchBucket",
        "there is no such bucket: see `[data] url`, or make it by `cluster data put --create-bucket FOLDER URL`",
        pattern=r"\bNoSuchBucket\b",
    ),
    Mistake(
        "NoSuchKey",
        "there is no such object: `cluster data ls` shows what is there; see `[data] url`",
        pattern=r"\bNoSuchKey\b",
    ),
    Mistake(
        "Cannot find any files that matches the URI",
        "nothing is there: `cluster data ls` shows what is; a folder's URL ends in /",
    ),
    Mistake(
        "ExpiredToken",
        "the job's credentials have run out, and MXNet cannot renew them: start it again; an instance_profile and "
        '`[data] mode = "stage"` have them renewed',
        pattern=r"\bExpiredToken(?:Exception)?\b",
    ),
    Mistake(
        "AccessDenied",
        "S3 refuses: a job may read `[data] url` and what its arguments and variables name, write `[data] results`, "
        "and delete nothing, as far as you may (`cluster verify`, `cluster iam-policy`); with "
        '`[provision] instance_profile = "auto"` it may use `[data] url` and `[data] results` alone, after '
        "`cluster up`",
        pattern=r"\bAccessDenied\b",
    ),
    Mistake(
        "InvalidAccessKeyId",
        "AWS does not know these credentials: look at AWS_ACCESS_KEY_ID and your profile on this machine",
        pattern=r"\bInvalidAccessKeyId\b",
    ),
    Mistake(
        "SignatureDoesNotMatch",
        "the secret key does not belong to the access key: look at AWS_SECRET_ACCESS_KEY and your profile",
        pattern=r"\bSignatureDoesNotMatch\b",
    ),
    Mistake(
        "RequestTimeTooSkewed",
        "the node's clock is wrong: `cluster verify` shows by how much; `cluster exec -- sudo chronyc makestep` sets "
        "it",
        pattern=r"\bRequestTimeTooSkewed\b",
    ),
    Mistake(
        "SlowDown",
        "S3 asks for fewer requests at once: fewer `--data-nthreads` or workers, or the data under several prefixes",
        pattern=r"<Code>SlowDown</Code>|\(SlowDown\)|S3 says SlowDown",
    ),
    Mistake(
        "S3_ACCESS_KEY_ID to use S3",
        "MXNet got no credentials for s3://: a job has some where `[data] url`, `[data] results`, its arguments or "
        "its variables name a place in S3, as in `cluster train --env MORE=s3://BUCKET/`; `cluster verify` shows "
        "whether there are any",
    ),
    Mistake(
        " Could not resolve host: ",
        "S3's name cannot be resolved on the node: its subnet needs a way to S3 (a gateway endpoint, or the internet)",
        pattern=r"CURLE_OK: (?:Error: )?Could not resolve host: ",
    ),
    Mistake(
        "Couldn't resolve host name",  # while writing
        "S3's name cannot be resolved on the node: its subnet needs a way to S3 (a gateway endpoint, or the internet)",
        pattern=r"s3_filesys\.cc:\d+: .*failed with error Couldn't resolve host name",
    ),
    Mistake(
        "Failed to connect to ",
        "S3 cannot be reached from the node: its subnet needs a way to S3 (a gateway endpoint, or the internet)",
        pattern=r"CURLE_OK: (?:Error: )?Failed to connect to ",
    ),
    Mistake(
        "Invalid RecordIO F",
        "a file that is read is no whole .rec file: one that was cut short (`cluster data info FOLDER`), or another "
        "file in the "
        "folder, such as an .idx: MXNet reads all that is in it",
    ),
    Mistake(
        "RecordIOWriter",
        "a file that is read is no whole .rec file: one that was cut short (`cluster data info FOLDER`), or another "
        "file in the "
        "folder, such as an .idx: MXNet reads all that is in it",
        pattern=r"Check failed: (?:p|header)\[0\] == RecordIOWriter: ?:kMagic",
    ),
    Mistake(
        "file do not align by 4 bytes",
        "a file that is read is no whole .rec file: one that was cut short (`cluster data info FOLDER`), or another "
        "file in the "
        "folder, such as an .idx: MXNet reads all that is in it",
    ),
)
