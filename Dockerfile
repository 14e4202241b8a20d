# The page and the commands, without a GPU:
#
#   docker build -t scalefield .
#   docker run --rm -p 127.0.0.1:8008:8008 scalefield    # open the printed address, with
#                                                                  127.0.0.1 as its host
#   docker run --rm -v "$PWD:/data" scalefield label /data/photos --out /data/labels
FROM python:3.12-slim

WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    ".[web,mde,heic,video,exr]" && rm -rf /source

RUN useradd --create-home scalefield
USER scalefield
WORKDIR /data
EXPOSE 8008
ENTRYPOINT ["scalefield"]
CMD ["web", "--host", "0.0.0.0", "--no-open"]
