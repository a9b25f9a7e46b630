from mq_spark.datasource.worker import prepare_process

prepare_process()
